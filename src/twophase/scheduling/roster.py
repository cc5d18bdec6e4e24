"""Who runs and who waits, by rank, and the moves between the two."""

import bisect
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from operator import attrgetter
from typing import final

from sortedcontainers import SortedKeyList

from twophase.cache.block_pool import BlockPool
from twophase.cache.block_table import BlockTable
from twophase.cache.manager import CacheManager
from twophase.cache.window import FREED
from twophase.core.errors import TwophaseError
from twophase.core.plan import BlockSwap
from twophase.scheduling.sequence import Sequence, SequenceStatus

_RANK = attrgetter("rank")


class SequenceFault(TwophaseError):
    """Planning `seq_id` raised (see `__cause__`). Nothing is half-done: `fail(seq_id, ...)` and `schedule` again."""

    def __init__(self, seq_id: int, cause: Exception) -> None:
        super().__init__(f"scheduling sequence {seq_id} failed: {type(cause).__name__}: {cause}")
        self.seq_id = seq_id


@contextmanager
def blamed_on(sequence: Sequence) -> Iterator[None]:
    """Whatever goes wrong inside is this sequence's fault."""
    try:
        yield
    except Exception as error:
        raise SequenceFault(sequence.seq_id, error) from error


def block_swaps(block_ids: Seq[int], host_blocks: Seq[int]) -> Iterator[BlockSwap]:
    """The moves between a table's blocks and those in host memory, where neither was freed."""
    pairs = zip(block_ids, host_blocks)  # noqa: B905  a table may have more
    return (BlockSwap(*pair) for pair in pairs if FREED not in pair)


@final
class Roster:
    """The queues. Only the scheduler and the step it plans change it; if a move raises, nothing has changed.

    Attributes:
        running: Sequences with blocks and a seat, by rank.
        waiting: Sequences without, preempted ones included, by rank.
        preempted: Ids of those who lost their blocks and were not yet told of in a plan.
        expected: Sequences whose prompt is computed elsewhere, without blocks, by rank.
        arriving: Those among them that have blocks and a seat; the K and V are on their way.
        landed: Blocks that were filled from elsewhere, and no step has been done since.
        held: Tables that keep blocks for somebody elsewhere who still copies them.
        swap_pool: The blocks of host memory; None without swapping.
    """

    def __init__(self, cache: CacheManager, num_swap_blocks: int) -> None:
        self.cache = cache
        self.running: list[Sequence] = []
        self.waiting: SortedKeyList = SortedKeyList(key=_RANK)
        self.preempted: list[int] = []
        self.expected: list[Sequence] = []
        self.arriving: list[Sequence] = []
        self.landed: list[int] = []
        self.held: list[BlockTable] = []
        self.swap_pool = BlockPool(num_swap_blocks) if num_swap_blocks else None

    def join_queue(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    @property
    def num_seats_taken(self) -> int:
        return sum(sequence.num_completions for sequence in (*self.running, *self.arriving))

    def expect(self, sequence: Sequence) -> None:
        bisect.insort(self.expected, sequence, key=_RANK)

    def seat(self, sequence: Sequence, table: BlockTable) -> None:
        """An expected sequence has these blocks, to be filled from elsewhere."""
        self.expected.remove(sequence)
        sequence.become(SequenceStatus.ARRIVING)
        sequence.table = table
        sequence.num_computed_tokens = sequence.num_cached_tokens = table.num_cached_tokens
        self.arriving.append(sequence)

    def land(self, sequence: Sequence) -> None:
        """The K and V of an arriving sequence are in its blocks: it runs."""
        assert sequence.table is not None
        sequence.become(SequenceStatus.RUNNING)
        self.landed += sequence.table.block_ids[sequence.num_cached_tokens // self.cache.block_size :]
        self.arriving.remove(sequence)
        self.join_running(sequence)

    def start(self, sequence: Sequence, table: BlockTable) -> None:
        """A waiting sequence runs, with these blocks."""
        self.waiting.remove(sequence)
        sequence.become(SequenceStatus.RUNNING)
        sequence.table = table
        sequence.num_computed_tokens = table.num_cached_tokens
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = table.num_cached_tokens
        self.join_running(sequence)

    def join_running(self, sequence: Sequence) -> None:
        bisect.insort(self.running, sequence, key=_RANK)

    def preempt(self, victim: Sequence, swap: bool = False) -> tuple[BlockSwap, ...]:
        """A running sequence loses its blocks and waits again.

        Args:
            swap: Save what it computed in host memory, if there is room; returns the moves to do for that.
        """
        with blamed_on(victim):
            assert victim.table is not None
            block_ids, num_computed = victim.table.block_ids, victim.num_computed_tokens
            self.take_blocks(victim)
        victim.become(SequenceStatus.PREEMPTED)
        victim.num_preemptions += 1
        self.waiting.add(victim)
        self.preempted.append(victim.seq_id)
        return self._swap_out(victim, block_ids, num_computed) if swap and not victim.host_blocks else ()

    def _swap_out(self, victim: Sequence, block_ids: list[int], num_computed: int) -> tuple[BlockSwap, ...]:
        block_ids = block_ids[: -(-num_computed // self.cache.block_size)]
        num_live = len(block_ids) - block_ids.count(FREED)
        if self.swap_pool is None or not 0 < num_live <= self.swap_pool.num_free:
            return ()
        free = iter(self.swap_pool.allocate(num_live))
        victim.host_blocks = tuple(FREED if block_id == FREED else next(free) for block_id in block_ids)
        victim.num_swapped_tokens = num_computed
        return tuple(block_swaps(block_ids, victim.host_blocks))

    def drop_host_blocks(self, sequence: Sequence) -> None:
        """What it had in host memory has come back, or is not to be trusted."""
        for block in sequence.host_blocks:
            assert self.swap_pool is not None
            if block != FREED:
                self.swap_pool.release(block, is_cached=False)
        sequence.host_blocks, sequence.num_swapped_tokens = (), 0

    def leave(self, sequence: Sequence) -> None:
        """Out, wherever it stands."""
        if sequence.table is not None:
            self.take_blocks(sequence)
        else:
            (self.expected if sequence in self.expected else self.waiting).remove(sequence)
        self.drop_host_blocks(sequence)

    def take_blocks(self, sequence: Sequence) -> None:
        """A running or arriving sequence gives its seat and blocks back."""
        assert sequence.table is not None
        self.cache.close(sequence.table)
        sequence.table = None
        sequence.num_computed_tokens = 0
        (self.arriving if sequence.status is SequenceStatus.ARRIVING else self.running).remove(sequence)
