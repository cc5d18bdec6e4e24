"""Blocks that come from a prefill pool, for a simulated engine."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

from twophase.cache.allocator import KVAllocator
from twophase.core.plan import BlockKey
from twophase.core.request import Request


@final
class ArrivedPages:
    """A `KVTier` that has whatever was sent: `twophase_features.parallel.remote_tier` without the bytes.

    Its blocks are taken to have been sent into the memory of the engine's GPU, so loading them moves nothing. It stands
    before the tier that the cache has already, if any.

    Attributes:
        num_loaded: Blocks that were loaded so far.
    """

    def __init__(self, cache: KVAllocator) -> None:
        self._cache = cache
        self._behind = cache.tier
        self.num_loaded = 0
        self._num_owners: Counter[BlockKey] = Counter()

    def expect(self, request: Request) -> Sequence[BlockKey]:
        """The full blocks of a prompt have come, and stay until they are dropped; returns their keys."""
        self._cache.tier = self
        keys: list[BlockKey] = []
        self._cache.close(self._cache.open(request.prompt_token_ids, request.cache_salt, False, keys))
        self._num_owners.update(keys)
        return keys

    def drop(self, keys: Sequence[BlockKey]) -> None:
        """A prompt has been admitted, and has loaded its blocks."""
        for key in keys:
            self._num_owners[key] -= 1
            if not self._num_owners[key]:
                del self._num_owners[key]

    def attach(self, runner: Any) -> None:
        """Nothing to do: there are no bytes."""

    def match(self, keys: Sequence[BlockKey]) -> int:
        num_here = self._num_here(keys)
        return num_here + (self._behind.match(keys[num_here:]) if self._behind else 0)

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        num_here = self._num_here(keys)
        self.num_loaded += num_here
        return num_here + (self._behind.load(keys[num_here:], block_ids[num_here:]) if self._behind else 0)

    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        return self._behind.store(keys, block_ids) if self._behind else 0

    def _num_here(self, keys: Sequence[BlockKey]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self._num_owners), len(keys))
