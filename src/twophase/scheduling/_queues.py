"""The queues: which sequences wait and run, by rank. Their blocks and places are the ledger's (ledger.py)."""

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
    """

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.waiting: SortedKeyList = SortedKeyList(key=_RANK)
        self.preempted: list[int] = []

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    def start(self, sequence: Sequence) -> None:
        """A waiting sequence was admitted."""
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
        queue = self.running if sequence.status is SequenceStatus.RUNNING else self.waiting
        queue.remove(sequence)
