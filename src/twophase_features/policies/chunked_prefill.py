"""Chunked prefill under a bound on the length of a step."""

from dataclasses import dataclass
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase.core.rules import apply_rules, whole_number
from twophase.scheduling.policy import Policy, Step, by_priority, decodes_first
from twophase.scheduling.sequence import Sequence


@final
@dataclass(frozen=True, slots=True)
class ChunkedPrefillPolicy(Policy):
    """Decodes first, and at most `max_tokens` tokens per step: Sarathi-Serve's stall-free batching (arXiv:2403.02310).
    The time between two tokens of a decode is bounded by the time of such a step.

    Attributes:
        max_tokens: Tokens of a step, decodes and drafts included. Decodes are never held back; prefills get the
            remaining tokens, and drafts the rest.
    """

    max_tokens: int

    def __post_init__(self) -> None:
        apply_rules(self, {"max_tokens": whole_number(1)}, ConfigError)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        decodes_first(step, self.max_tokens)
