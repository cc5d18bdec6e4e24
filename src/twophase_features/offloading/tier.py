"""The door for K and V that are kept elsewhere, and found again by a block's tokens."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from twophase.core.plan import BlockKey


@runtime_checkable
class KVTier(Protocol):
    """A second place for full blocks: host memory, a disk, another process. `LLM(kv_tier=...)` takes one.

    The cache manager has a block stored that is about to be overwritten (`store`), and asks for blocks that continue a
    prefix hit when a request is admitted (`match`, `load`). Each call does its work before it returns. A key stands for
    a block's tokens, all tokens before them, the salt and the group of layers: blocks of one key hold the same K and V.

    Between `match` and `load` there may be a `store`, to make room for the very blocks that are loaded. So a tier with
    a limit marks blocks in `match` as just used. A block that a tier has lost is a miss. A call that raises, or returns
    an invalid number of blocks, is logged and counts as 0 blocks.
    """

    def attach(self, runner: Any) -> None:
        """Called once, before everything else, with the engine's `Runner`, whose blocks are moved; not in a
        simulation, which has no blocks."""
        ...

    def match(self, keys: Sequence[BlockKey]) -> int:
        """How many of the first keys the tier has, without a gap."""
        ...

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        """Write the contents of the first keys into these blocks of the cache; returns how many were written."""
        ...

    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        """These blocks of the cache are about to be overwritten: keep copies of their contents, as far as wanted;
        returns how many blocks were copied."""
        ...
