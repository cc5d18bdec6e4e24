"""The door for speculative decoding; behind it `GatedSpeculator` and a `Drafter` (twophase_features.speculation)."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from twophase.core.plan import SampledToken, ScheduledChunk, StepPlan
from twophase.engine.model_run import BatchEntry
from twophase.scheduling.scheduler import Scheduler


@runtime_checkable
class Speculator(Protocol):
    """Puts drafts into a step's plan, for the model to verify. Methods must not raise."""

    def draft(
        self, plan: StepPlan, scheduler: Scheduler, entry_of: Callable[[ScheduledChunk], BatchEntry], vocab_size: int
    ) -> StepPlan:
        """The plan with drafts behind its decodes, by `scheduler.amend`; tokens that the requests allow."""
        ...

    def forget(self, seq_id: int) -> None:
        """The sequence has ended."""
        ...

    def note_results(
        self, plan: StepPlan, results: Mapping[int, tuple[SampledToken, ...] | Exception], elapsed_s: float
    ) -> None:
        """A step took `elapsed_s` seconds; `results` has the tokens of each chunk, or its error, by seq_id."""
        ...
