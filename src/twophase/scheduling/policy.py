"""Who goes first: one order decides both who is admitted next and who is preempted."""

import abc
from dataclasses import dataclass
from typing import Any, final

from twophase.scheduling.sequence import Sequence


class Policy(abc.ABC):
    """Ranks sequences: the waiting one of smallest rank is admitted next, the running one of largest is the victim.

    Both ends of one order, so that nobody is preempted for someone who would then be the next victim, and a victim is
    never part of the step being planned (running sequences are planned in rank order). Implementations are final.
    """

    @abc.abstractmethod
    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Sort key, unique and fixed for the sequence's life: queues are sorted once, not at every step."""


@final
@dataclass(frozen=True, slots=True)
class PriorityPolicy(Policy):
    """By priority, ties by arrival; first come, first served when all priorities are equal.

    A preempted sequence arrived before everyone of its priority who has not run yet, so it goes to their front.

    Attributes:
        patience_s: Ageing. None: strict priorities, under which low ones may starve. Otherwise a request passes over
            another of a priority level better once it has waited `patience_s` seconds longer: nobody is overtaken by
            requests that arrive more than `patience_s` times the difference in level after it. (Comparing
            priority - wait / patience_s of two requests gives the same order at every moment, so the rank is fixed.)
    """

    patience_s: float | None = None

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        request = sequence.request
        if self.patience_s is None:
            return (request.priority, sequence.arrival_order, sequence.index)
        return (request.arrival_s + request.priority * self.patience_s, sequence.arrival_order, sequence.index)
