"""The waiting sequences, best rank first."""

import heapq
from typing import Any, final

from twophase.scheduling.sequence import Sequence


@final
class WaitingQueue:
    """A heap on `Sequence.rank`. Only the scheduler changes it.

    `peek`, `push` and `remove` take O(log n), averaged over calls: a removed sequence's entry stays in the heap until
    it comes to the top, or until more than half of the heap is stale and it is rebuilt.
    """

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}
        self._heap: list[tuple[tuple[Any, ...], int]] = []  # (rank, seq_id)

    def __len__(self) -> int:
        return len(self._sequences)

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (sequence.rank, sequence.seq_id))
        self._sequences[sequence.seq_id] = sequence

    def peek(self) -> Sequence | None:
        """The sequence of smallest rank, or None."""
        while self._heap:
            sequence = self._sequences.get(self._heap[0][1])
            if sequence is not None:
                return sequence
            heapq.heappop(self._heap)
        return None

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence, wherever it stands; KeyError if it does not wait."""
        del self._sequences[sequence.seq_id]
        if self._heap[0][1] == sequence.seq_id:
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * len(self._sequences):
            self._heap = [(waiting.rank, seq_id) for seq_id, waiting in self._sequences.items()]
            heapq.heapify(self._heap)
