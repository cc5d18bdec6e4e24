"""Earliest deadline first."""

import math
from dataclasses import dataclass
from typing import Any, final

from twophase.core.rules import option, optional, whole_number
from twophase.scheduling.policy import Policy, Step, decodes_first
from twophase.scheduling.sequence import Sequence


@final
@dataclass(frozen=True, slots=True)
class DeadlinePolicy(Policy):
    """Earliest deadline first: by arrival plus the request's `ttft_slo_s`; requests without one come last.

    Attributes:
        max_tokens: Tokens of a step, as in `ChunkedPrefillPolicy`; None: the scheduler's budget.
    """

    max_tokens: int | None = option(None, optional(whole_number(1)))

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        slo_s = sequence.request.ttft_slo_s
        deadline_s = math.inf if slo_s is None else sequence.request.arrival_s + slo_s
        return (deadline_s, sequence.arrival_order, sequence.index)

    def plan(self, step: Step) -> None:
        decodes_first(step, self.max_tokens)
