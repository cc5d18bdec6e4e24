"""Request-level batching: a batch starts together, and no request joins it later."""

from dataclasses import MISSING, dataclass
from typing import final

from twophase.core.rules import number, option, whole_number
from twophase.scheduling.policy import Policy, Step


@final
@dataclass(frozen=True, slots=True)
class StaticPolicy(Policy):
    """A batch of the waiting requests, up to `batch_size` completions; the next one starts when the last has ended."""

    batch_size: int = option(MISSING, whole_number(1))

    def plan(self, step: Step) -> None:
        if step.running:
            run_batch(step)
        else:
            start_batch(step, self.batch_size)


@final
@dataclass(frozen=True, slots=True)
class DynamicPolicy(Policy):
    """Dynamic batching: a batch starts when it is full, or when its oldest request has waited `timeout_s` seconds."""

    batch_size: int = option(MISSING, whole_number(1))
    timeout_s: int | float = option(MISSING, number("a finite number of seconds, at least 0", lambda x: x >= 0))

    def plan(self, step: Step) -> None:
        if step.running:
            run_batch(step)
            return
        # An arrival in the future counts as now, so that a batch never waits longer than the time-out.
        oldest_s = min(step.now_s, *(sequence.request.arrival_s for sequence in step.waiting))
        starts_s = oldest_s + self.timeout_s
        is_full = step.num_waiting >= min(self.batch_size, step.num_free_seqs)
        if is_full or step.now_s >= starts_s:
            start_batch(step, self.batch_size)
        else:
            step.wait_until(starts_s)


def run_batch(step: Step) -> None:
    """The running sequences alone: prefills to their end, then all decodes together."""
    prefills = [sequence for sequence in step.running if not sequence.is_decoding]
    for sequence in prefills:
        step.prefill(sequence)
    if not prefills:
        for sequence in step.running:
            step.decode(sequence)


def start_batch(step: Step, batch_size: int) -> None:
    """Waiting requests with up to `batch_size` completions together, one request at least."""
    places = batch_size
    for sequence in step.waiting:
        is_too_many = sequence.num_completions > places and not step.is_empty
        if is_too_many or not step.admit(sequence):
            break
        places -= sequence.num_completions
