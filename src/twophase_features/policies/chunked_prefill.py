"""Chunked prefill under a bound on the length of a step."""

from dataclasses import MISSING, dataclass
from typing import final

from twophase.core.rules import option, whole_number
from twophase.scheduling.policy import Policy, Step, decodes_first


@final
@dataclass(frozen=True, slots=True)
class ChunkedPrefillPolicy(Policy):
    """Decodes first, and at most `max_tokens` tokens per step: Sarathi-Serve's stall-free batching (arXiv:2403.02310).
    The time between two tokens of a decode is bounded by the time of such a step.

    Attributes:
        max_tokens: Tokens of a step, decodes and drafts included. Decodes are never held back; prefills get the
            remaining tokens, and drafts the rest.
    """

    max_tokens: int = option(MISSING, whole_number(1))

    def plan(self, step: Step) -> None:
        decodes_first(step, self.max_tokens)
