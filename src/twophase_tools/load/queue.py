"""The queue in front of the engine: requests that are due and have never been scheduled.

Taken from the records, not from the engine's own count: between two steps requests come that no step has seen yet, and
under load that is where they wait. Preempted sequences wait too, but they have been served: for them see
`StepTrace.num_waiting`.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from twophase_tools.load.latency import Percentiles
from twophase_tools.load.records import RequestRecord


class QueueState(NamedTuple):
    """At one moment: how many are in the queue, and how long the oldest has been; None when nobody is."""

    depth: int
    age_s: float | int | None


def left_queue_s(record: RequestRecord) -> float | int:
    """When a request was scheduled, or ended before that; infinity while it waits."""
    left_s = record.finished_s if record.first_scheduled_s is None else record.first_scheduled_s
    return math.inf if left_s is None else left_s


def queue_states(records: Sequence[RequestRecord], times_s: Sequence[float | int]) -> list[QueueState]:
    """The queue at each of `times_s`, which must not decrease. A request is in it over [arrival, scheduling)."""
    coming = sorted(((record.arrival_s, left_queue_s(record)) for record in records), reverse=True)
    by_age: list[tuple[float | int, float | int]] = []  # (arrival, when it leaves): who left is dropped at the front
    by_leaving: list[float | int] = []
    states = []
    for time_s in times_s:
        while coming and coming[-1][0] <= time_s:
            arrival_s, left_s = coming.pop()
            heapq.heappush(by_age, (arrival_s, left_s))
            heapq.heappush(by_leaving, left_s)
        while by_leaving and by_leaving[0] <= time_s:
            heapq.heappop(by_leaving)
        while by_age and by_age[0][1] <= time_s:
            heapq.heappop(by_age)
        states.append(QueueState(len(by_leaving), time_s - by_age[0][0] if by_age else None))
    return states


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The queue over a window.

    Attributes:
        depth_mean: Over time; by Little's law the arrival rate times the mean wait. None when no time passed.
        depth_max: At any moment.
        age_max_s: The longest anyone waited, those included who wait still; None when nobody waited at all.
        ages: The age of the oldest in the queue at the moments given, where there was one; None: there never was.
    """

    depth_mean: float | None
    depth_max: int
    age_max_s: float | None
    ages: Percentiles | None = None

    @classmethod
    def of(
        cls,
        records: Sequence[RequestRecord],
        window: tuple[float | int, float | int],
        times_s: Sequence[float | int] = (),
    ) -> "QueueSummary":
        """Of requests that arrived within `window`, [start, end]; `times_s`, which must not decrease, tell the ages."""
        start_s, end_s = window
        stays = [(record.arrival_s, min(left_queue_s(record), end_s)) for record in records]
        stays = [(arrival_s, left_s) for arrival_s, left_s in stays if left_s > arrival_s]
        waits_s = [left_s - arrival_s for arrival_s, left_s in stays]
        # At the same moment -1 sorts before +1: who leaves makes room for who comes.
        changes = sorted([(arrival_s, 1) for arrival_s, _ in stays] + [(left_s, -1) for _, left_s in stays])
        return cls(
            depth_mean=math.fsum(waits_s) / (end_s - start_s) if end_s > start_s else None,
            depth_max=max(accumulate(change for _, change in changes), default=0),
            age_max_s=float(max(waits_s)) if waits_s else None,
            ages=Percentiles.of(state.age_s for state in queue_states(records, times_s)),
        )
