"""The states that requests pass through in a running scheduler, told one change at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twophase.core.plan import SampledToken, SequenceUpdate, StepPlan
from twophase.scheduling.scheduler import Scheduler
from twophase.scheduling.sequence import Sequence as Scheduled
from twophase.scheduling.sequence import SequenceStatus


def state_of(sequence: Scheduled) -> str:
    """The state's name as in section 1: the engine keeps 'running', and what it runs follows from the counts."""
    if sequence.status is SequenceStatus.RUNNING:
        return "decoding" if sequence.is_decoding else "prefill"
    return sequence.status.value


class WatchedScheduler:
    """The real scheduler; tells `note(request id, state)` whenever a request's state is another than before.

    It looks twice in every step: when it was planned, and when it was confirmed.
    """

    def __init__(self, scheduler: Scheduler, note: Callable[[str, str], None]) -> None:
        self._scheduler = scheduler
        self._note = note
        self._latest: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def schedule(self, now_s: int | float = 0.0) -> StepPlan:
        for sequence in self._scheduler.sequences.values():  # those who came since the last step
            self._latest.setdefault(sequence.request.request_id, state_of(sequence))
        plan = self._scheduler.schedule(now_s)
        self._look()
        return plan

    def update(self, plan: StepPlan, sampled: Mapping[int, Sequence[SampledToken]]) -> list[SequenceUpdate]:
        updates = self._scheduler.update(plan, sampled)
        self._look()
        for update in updates:
            if update.finish_reason is not None:
                self._note(update.request_id, "finished")
        return updates

    def _look(self) -> None:
        for sequence in self._scheduler.sequences.values():
            name, state = sequence.request.request_id, state_of(sequence)
            if state != self._latest.get(name):
                self._latest[name] = state
                self._note(name, state)
