"""Policies that compute a prompt in one step: beside the decodes, or before them."""

from dataclasses import dataclass
from typing import final

from twophase.core.rules import option, optional, whole_number
from twophase.scheduling.policy import Policy, Step, decodes_and_begun, decodes_first


@final
@dataclass(frozen=True, slots=True)
class ContinuousPolicy(Policy):
    """Iteration-level scheduling with whole prompts (Orca, OSDI 2022): sequences join and leave at every step, and a
    prompt is computed in one step beside the decodes, which wait for it."""

    def plan(self, step: Step) -> None:
        decodes_and_begun(step)
        admit_whole(step)


@final
@dataclass(frozen=True, slots=True)
class PrefillFirstPolicy(Policy):
    """Prompts before decodes, whole and in steps of their own, as early vLLM did: first tokens come soon, and decodes
    stall as long as prompts keep coming.

    Attributes:
        max_stalled_steps: Maximum consecutive steps without a decode; None: unlimited.
    """

    max_stalled_steps: int | None = option(None, optional(whole_number(1)))

    def plan(self, step: Step) -> None:
        if self.max_stalled_steps is None or step.num_stalled_steps < self.max_stalled_steps:
            for sequence in step.running:
                if not sequence.is_decoding:
                    step.prefill(sequence)
            admit_whole(step)
        if step.is_empty:
            decodes_first(step)


def admit_whole(step: Step) -> None:
    """Whole prompts of waiting sequences in order until one is refused."""
    for sequence in step.waiting:
        if not step.admit(sequence, whole=True):
            break
