"""The KV tier of a decode engine: blocks that a prefill worker computed and sent wait here until they are loaded."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import UInt8
from torch import Tensor

from twophase.cache.kv_cache import KVCache
from twophase.core.plan import BlockCopy, BlockKey
from twophase_features.offloading.host_memory import PinnedBlocks
from twophase_features.offloading.tier import KVTier
from twophase_features.parallel.pages import unpack_layer


@dataclass(slots=True)
class _Block:
    """A block in host memory.

    Attributes:
        num_owners: Prompts that expect it.
        layers: The layers that have come.
    """

    place: int
    num_owners: int = 0
    layers: set[int] = field(default_factory=set)


@final
class RemoteTier:
    """A `KVTier` in host memory that another process fills.

    `expect` keeps room for a prompt's blocks, `receive` fills them layer by layer, and `drop` gives the room back. A
    block is found by its key, once all its layers have come. Pages that are not expected (any more) are not written.
    So pages that come late harm no other prompt, and pages that do not come are a miss: their tokens are computed.

    `receive` may be called by another thread than the other methods.

    Args:
        kv_cache: The blocks of the decode engine.
        behind: A tier that is asked for the blocks that have not come, and given the blocks that leave the cache.
        num_blocks: None: as many as `kv_cache` has, in at most a quarter of the free host memory.

    Raises:
        ConfigError: The memory is not there.
    """

    def __init__(self, kv_cache: KVCache, behind: KVTier | None = None, num_blocks: int | None = None) -> None:
        self._device = kv_cache.device
        self._blocks = PinnedBlocks(kv_cache, num_blocks)
        self._behind = behind
        self.num_blocks = self._blocks.num_blocks
        self._free = list(range(self.num_blocks))
        self._expected: dict[BlockKey, _Block] = {}
        self._lock = threading.Lock()

    # -- what comes

    def expect(self, keys: Sequence[BlockKey]) -> bool:
        """Keep room for a prompt's blocks until they are dropped; False, with nothing changed, if there is no room."""
        with self._lock:
            new = [key for key in keys if key not in self._expected]
            if len(new) > len(self._free):
                return False
            self._expected |= {key: _Block(self._free.pop()) for key in new}
            for key in keys:
                self._expected[key].num_owners += 1
        return True

    def drop(self, keys: Sequence[BlockKey]) -> None:
        """A prompt needs its expected blocks no longer. After the last prompt that expected a block, the block is
        written no more, and its place is free."""
        with self._lock:
            for key in keys:
                block = self._expected[key]
                block.num_owners -= 1
                if block.num_owners == 0:
                    self._free.append(self._expected.pop(key).place)

    def receive(self, keys: Sequence[BlockKey], layer: int, parts: Sequence[UInt8[Tensor, "n ..."]]) -> None:
        """Write a layer of these blocks, as `pack_layer` gives it. If torch cannot (no memory for a copy, say), these
        pages are missing, and that is all. Pages that are here stay as they are, for they may be loaded just now."""
        with self._lock:
            blocks = [self._expected.get(key) for key in keys]
            new = [block if block is not None and layer not in block.layers else None for block in blocks]
            if any(new):
                with suppress(RuntimeError):
                    places = [None if block is None else block.place for block in new]
                    unpack_layer(self._blocks.host, layer, parts, places)
                    for block in filter(None, new):
                        block.layers.add(layer)

    # -- as a KV tier

    def attach(self, runner: Any) -> None:
        """Nothing to do: the blocks are known."""

    def match(self, keys: Sequence[BlockKey]) -> int:
        num_here = self.num_here(keys)
        return num_here + (0 if self._behind is None else self._behind.match(keys[num_here:]))

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        num_here = self.num_here(keys)
        places = [self._expected[key].place for key in keys[:num_here]]
        self._blocks.restore(list(map(BlockCopy, places, block_ids)))
        if self._device.type == "cuda":  # once dropped, a place is written by a thread that waits for no stream
            torch.cuda.current_stream(self._device).synchronize()
        if self._behind is None or num_here == len(keys):
            return num_here
        return num_here + self._behind.load(keys[num_here:], block_ids[num_here:])

    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        return 0 if self._behind is None else self._behind.store(keys, block_ids)

    def num_here(self, keys: Sequence[BlockKey]) -> int:
        """How many of the first keys have come in all layers, without a gap."""
        num_layers = self._blocks.host.spec.num_layers
        with self._lock:
            blocks = [self._expected.get(key) for key in keys]
            is_here = [block is not None and len(block.layers) == num_layers for block in blocks]
        return next((i for i, is_whole in enumerate(is_here) if not is_whole), len(keys))
