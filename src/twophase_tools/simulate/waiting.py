"""Which request in a long queue has waited longest."""

import heapq
from itertools import count
from typing import final

from twophase_tools.simulate.progress import RequestProgress


@final
class WaitingRequests:
    """Requests that were never scheduled, oldest first. Adding one and looking at the oldest take logarithmic time: a
    request that has left is dropped when it comes to the front.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float | int, int, RequestProgress]] = []  # the number breaks ties
        self._numbers = count()

    def add(self, arrival_s: float | int, request: RequestProgress) -> None:
        heapq.heappush(self._heap, (arrival_s, next(self._numbers), request))

    def oldest_s(self, now_s: float | int) -> float | None:
        """How long the oldest has waited, in seconds; None if no request waits."""
        while self._heap and _has_left(self._heap[0][2]):
            heapq.heappop(self._heap)
        return max(0.0, float(now_s - self._heap[0][0])) if self._heap else None


def _has_left(request: RequestProgress) -> bool:
    return request.first_scheduled_s is not None or request.finished_s is not None
