"""The default policy: decodes first, prompts in chunks. Other policies are made of the functions that it is made of."""

from dataclasses import dataclass
from typing import Any, final

from twophase.scheduling.policy import Policy, Step
from twophase.scheduling.sequence import Sequence


@final
@dataclass(frozen=True, slots=True)
class PriorityPolicy(Policy):
    """The default: by priority; decodes first, and the rest of the budget for prefills.

    Attributes:
        patience_s: Ageing. None: priorities are strict, and requests of low priority may starve. Otherwise a request
            passes over another of a priority level better once it has waited `patience_s` seconds longer, so a request
            that arrives more than `patience_s` times the difference in level later never overtakes it. (Comparing
            priority - wait / patience_s of two requests gives the same order at every moment, so the rank is fixed.)
    """

    patience_s: int | float | None = None

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        request = sequence.request
        if self.patience_s is None:
            return by_priority(sequence)
        return (request.arrival_s + request.priority * self.patience_s, sequence.arrival_order, sequence.index)

    def plan(self, step: Step) -> None:
        decodes_first(step)


def by_priority(sequence: Sequence) -> tuple[Any, ...]:
    """By priority, ties by arrival: first come, first served when all priorities are equal.

    A preempted sequence arrived before all sequences of its priority that have not run yet, so it goes to their front.
    """
    request = sequence.request
    return (request.priority, sequence.arrival_order, sequence.index)


def decodes_first(step: Step, max_tokens: int | None = None) -> None:
    """A token of every decode, then the prefills already begun, then waiting sequences in order until one does not fit.

    `max_tokens` bounds the tokens of the step, decodes and drafts included; decodes are never held back.
    """
    decodes_and_begun(step, max_tokens)
    for sequence in step.waiting:
        if not step.admit(sequence):
            break


def decodes_and_begun(step: Step, max_tokens: int | None = None) -> None:
    """`decodes_first` without the waiting sequences."""
    prefills = []
    for sequence in step.running:
        if sequence.is_decoding:
            step.decode(sequence)
        else:
            prefills.append(sequence)
    if max_tokens is not None:
        step.limit(max_tokens)
    for sequence in prefills:
        step.prefill(sequence)
