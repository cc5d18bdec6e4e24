"""A scheduling policy: an order of sequences, and a plan for each step; the default policy and its parts."""

import abc
from dataclasses import dataclass
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase.core.rules import apply_rules, rules_of
from twophase.scheduling.planner import Planner
from twophase.scheduling.sequence import Sequence

# One step being planned: a policy reads its attributes, and calls its moves.
Step = Planner


class Policy(abc.ABC):
    """The order of sequences, and the plan of each step. Implementations are final.

    One order decides which waiting sequence is admitted next (smallest rank) and which running sequence is preempted
    (largest rank). So no sequence preempts a sequence of better rank.

    The scheduler reports events by the `note_` methods, which do nothing here. A policy that counts events returns a
    copy with new counters from `fresh`. An exception in a `note_` method is not caught; the step is lost.
    """

    def __repr__(self) -> str:  # for messages; a dataclass has its own
        return type(self).__name__

    def __post_init__(self) -> None:  # of a policy that is a dataclass
        apply_rules(self, rules_of(type(self)), ConfigError)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Sort key of numbers, fixed, as queues are sorted once; equal ranks go by seq_id. Here: priority, arrival."""
        return by_priority(sequence)

    @abc.abstractmethod
    def plan(self, step: Step) -> None:
        """Plan one step. An empty plan while requests are unfinished is an error, unless `wait_until` was called."""

    def fresh(self) -> "Policy":
        """The policy for one scheduler: this object if it has no counters, else a copy with new counters."""
        return self

    def note_waiting(self, sequence: Sequence) -> None:
        """A sequence joins the waiting queue: it is new, or was preempted (`num_preemptions` tells)."""
        return

    def note_computed(self, sequence: Sequence, num_prefill_tokens: int, num_output_tokens: int) -> None:
        """A sequence's chunk has been computed; called before the sequence changes.

        Args:
            num_prefill_tokens: Tokens of a prefill chunk, recomputed output tokens included; 0 for a decode.
            num_output_tokens: Tokens sampled for the sequence, for all its completions.
        """
        return

    def note_ended(self, sequence: Sequence) -> None:
        """A running or waiting sequence has ended, by itself, by an abort or by an error."""
        return


@final
@dataclass(frozen=True, slots=True)
class PriorityPolicy(Policy):
    """The default: by priority; decodes first, and the rest of the budget for prefills."""

    def plan(self, step: Step) -> None:
        decodes_first(step)


def by_priority(sequence: Sequence) -> tuple[Any, ...]:
    """By priority, ties by arrival: first come, first served when all priorities are equal. A preempted sequence
    arrived before all sequences of its priority that have not run yet, so it goes to their front."""
    request = sequence.request
    return (request.priority, sequence.arrival_order, sequence.index)


def decodes_first(step: Step, max_tokens: int | None = None) -> None:
    """Plan a token of every decode, then prefills in progress, then waiting sequences in order until one is refused.

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
