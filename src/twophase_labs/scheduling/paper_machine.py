"""What lab 5's planner asks a simulated run: each request's times, and nothing of its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from twophase.core.outputs import StepTrace
from twophase_tools.simulate.observers import Observer
from twophase_tools.simulate.progress import RequestProgress


@dataclass
class Ends(Observer):
    """(arrival, end, time to first token, time per token) of each request, and nothing of its steps."""

    found: list[tuple[float, float, float, float]] = field(default_factory=list)
    wants_details: bool = field(default=False, init=False)

    def note_step(self, trace: StepTrace) -> None:
        raise AssertionError("wants no details")

    def note_gaps(self, gaps_s: Sequence[float | int], num_sequences: int) -> None:
        pass

    def note_end(self, progress: RequestProgress) -> None:
        times = progress.request.arrival_s, progress.finished_s, progress.ttft_s, progress.tpot_s
        arrival_s, end_s, ttft_s, tpot_s = (float(time_s or 0.0) for time_s in times)
        self.found.append((arrival_s, end_s, ttft_s, tpot_s))
