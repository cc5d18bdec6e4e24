"""The KV tier of a decode engine: pages that a prefill worker computed and sent wait here until they are loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from twophase.cache.kv_cache import KVCache
from twophase.core.plan import BlockKey
from twophase_features.offloading.host_memory import default_num_blocks
from twophase_features.offloading.tier import KVTier
from twophase_features.parallel._protocol import Pages
from twophase_features.parallel.pages import unpack_layer


@dataclass(slots=True)
class _Block:
    """How many prompts expect a block, and its pages that have come, by layer."""

    num_owners: int = 0
    pages: dict[int, Pages] = field(default_factory=dict)


@final
class RemoteTier:
    """A `KVTier` that another process fills.

    `expect` keeps room for a prompt's blocks, `receive` keeps their pages as they come, and `drop` gives the room back.
    A block is found by its key, once all its layers have come. Pages that are not expected (any more) are not kept. So
    pages that come late harm no other prompt, and pages that do not come are a miss: their tokens are computed.

    Args:
        kv_cache: The blocks of the decode engine.
        behind: A tier that is asked for the blocks that have not come, and given the blocks that leave the cache.
        num_blocks: None: as many as `kv_cache` has, in at most a quarter of the free host memory.

    Raises:
        ConfigError: Not even one block fits.
    """

    def __init__(self, kv_cache: KVCache, behind: KVTier | None = None, num_blocks: int | None = None) -> None:
        self._kv_cache, self._behind = kv_cache, behind
        self.num_blocks = num_blocks or default_num_blocks(kv_cache.spec.bytes_per_block, kv_cache.num_blocks)
        self._expected: dict[BlockKey, _Block] = {}

    # -- what comes

    def expect(self, keys: Sequence[BlockKey]) -> bool:
        """Keep room for a prompt's blocks until they are dropped; False, with nothing changed, if there is no room."""
        if len(self._expected.keys() | keys) > self.num_blocks:
            return False
        for key in keys:
            self._expected.setdefault(key, _Block()).num_owners += 1
        return True

    def drop(self, keys: Sequence[BlockKey]) -> None:
        """A prompt needs its expected blocks no longer; the last prompt that expected a block gives its room back."""
        for key in keys:
            self._expected[key].num_owners -= 1
            if not self._expected[key].num_owners:
                del self._expected[key]

    def receive(self, pages: Pages) -> None:
        """Keep a layer of the blocks that are expected."""
        for key in pages.keys:
            if key in self._expected:
                self._expected[key].pages.setdefault(pages.layer, pages)

    # -- as a KV tier

    def attach(self, runner: Any) -> None:
        """Nothing to do: the blocks are known."""

    def match(self, keys: Sequence[BlockKey]) -> int:
        num_here = self.num_here(keys)
        return num_here + (0 if self._behind is None else self._behind.match(keys[num_here:]))

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        num_here = self.num_here(keys)
        target_of = dict(zip(keys[:num_here], block_ids, strict=False))
        several = {id(pages): pages for key in target_of for pages in self._expected[key].pages.values()}
        for pages in several.values():
            unpack_layer(self._kv_cache, pages.layer, pages.parts, [target_of.get(key) for key in pages.keys])
        if self._behind is None or num_here == len(keys):
            return num_here
        return num_here + self._behind.load(keys[num_here:], block_ids[num_here:])

    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        return 0 if self._behind is None else self._behind.store(keys, block_ids)

    def num_here(self, keys: Sequence[BlockKey]) -> int:
        """How many of the first keys have come in all layers, without a gap."""
        num_layers = self._kv_cache.spec.num_layers
        blocks = (self._expected.get(key) for key in keys)
        return next((i for i, block in enumerate(blocks) if block is None or len(block.pages) < num_layers), len(keys))
