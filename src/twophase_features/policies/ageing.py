"""Priorities under which no request starves: waiting makes up for them."""

from dataclasses import MISSING, dataclass
from typing import Any, final

from twophase.core.rules import number, option
from twophase.scheduling.policy import Policy, Step, decodes_first
from twophase.scheduling.sequence import Sequence


@final
@dataclass(frozen=True, slots=True)
class AgeingPolicy(Policy):
    """By priority, but a request overtakes a request of the next better priority once it has waited `patience_s`
    seconds longer. (Comparing priority - wait / patience_s of two requests gives the same order at every moment, so the
    rank is fixed.)"""

    patience_s: int | float = option(MISSING, number("a finite number of seconds"))

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        request = sequence.request
        return (request.arrival_s + request.priority * self.patience_s, sequence.arrival_order, sequence.index)

    def plan(self, step: Step) -> None:
        decodes_first(step)
