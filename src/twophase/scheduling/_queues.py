"""The queues: which sequences wait, arrive and run, by rank. Their blocks and places are the ledger's (ledger.py)."""

import bisect
from operator import attrgetter
from typing import final

from sortedcontainers import SortedKeyList

from twophase.scheduling.sequence import Sequence, SequenceStatus

_RANK = attrgetter("rank")


@final
class SequenceQueues:
    """Only the scheduler and the step it plans change them.

    Attributes:
        running: Sequences with blocks and a place, by rank.
        waiting: Sequences without, preempted ones included, by rank.
        preempted: Ids of those that lost their blocks and that no plan has told of yet.
        expected: Sequences whose prompt is computed elsewhere, without blocks, by rank.
        arriving: Those among them that have blocks and a place; the K and V are on their way.
    """

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.waiting: SortedKeyList = SortedKeyList(key=_RANK)
        self.preempted: list[int] = []
        self.expected: list[Sequence] = []
        self.arriving: list[Sequence] = []

    def add(self, sequence: Sequence, is_prefilled_elsewhere: bool) -> None:
        if is_prefilled_elsewhere:
            bisect.insort(self.expected, sequence, key=_RANK)
        else:
            self.waiting.add(sequence)

    def arrive(self, sequence: Sequence) -> None:
        """An expected sequence has blocks, to be filled from elsewhere."""
        self.remove(sequence)
        sequence.become(SequenceStatus.ARRIVING)
        self.arriving.append(sequence)

    def give_up(self, sequence: Sequence) -> None:
        """What an expected or arriving sequence waits for will not come: it waits like the others."""
        self.remove(sequence)
        if sequence.status is SequenceStatus.ARRIVING:
            sequence.become(SequenceStatus.WAITING)
        self.waiting.add(sequence)

    def start(self, sequence: Sequence) -> None:
        """A waiting sequence was let in, or the K and V of an arriving one are there."""
        self.remove(sequence)
        self.run(sequence)

    def run(self, sequence: Sequence) -> None:
        """A sequence with blocks that is in no queue yet, such as a fork."""
        sequence.become(SequenceStatus.RUNNING)
        bisect.insort(self.running, sequence, key=_RANK)

    def preempt(self, victim: Sequence) -> None:
        """A running sequence lost its blocks and waits again."""
        self.remove(victim)
        victim.become(SequenceStatus.PREEMPTED)
        victim.num_preemptions += 1
        self.waiting.add(victim)
        self.preempted.append(victim.seq_id)

    def remove(self, sequence: Sequence) -> None:
        """Out of the queue that it is in."""
        waits_in = self.expected if sequence in self.expected else self.waiting
        with_blocks = {SequenceStatus.RUNNING: self.running, SequenceStatus.ARRIVING: self.arriving}
        queue = with_blocks.get(sequence.status, waits_in)
        queue.remove(sequence)
