"""A scheduling policy: an order, and a plan for one step made with the moves that a step offers.

The default policy, and the functions that it and other policies are made of.
"""

import abc
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, final, runtime_checkable

from twophase.core.errors import InvalidRequestError
from twophase.scheduling.sequence import Sequence


class Refusal(enum.Enum):
    """Why a sequence was not admitted, and how long that holds."""

    BLOCKS = "too few free blocks"  # until one is freed, or one is published that it can share
    PLACES = "max_num_seqs"  # until a running sequence ends or is preempted
    BUDGET = "token budget"  # until a step has more tokens left for it
    POLICY = "the policy did not ask for it"  # or allowed it no token; as long as the policy's rule says so


@runtime_checkable
class Step(Protocol):
    """One step being planned, as a policy sees it.

    It keeps to the blocks, the places (one for each completion, `max_num_seqs` in all) and the token budget: a move
    that does not fit plans less, or nothing, and says so. A move that makes no sense (the same sequence twice, a decode
    of a prefill) raises PolicyError.

    Attributes:
        now_s: The engine's clock.
        num_stalled_steps: Steps in a row in which a sequence was ready to decode and none did.
        budget: Tokens that this step can still compute.
        num_free_places: Completions that may still be admitted.
        num_waiting: Sequences that wait.
        is_empty: Whether nothing is planned yet.
        running: The running sequences, best rank first.
        waiting: The waiting sequences, best rank first; sequences admitted meanwhile are passed over.
    """

    now_s: int | float
    num_stalled_steps: int

    @property
    def budget(self) -> int: ...

    @property
    def num_free_places(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def running(self) -> tuple[Sequence, ...]: ...

    @property
    def waiting(self) -> Iterator[Sequence]: ...

    def decode(self, sequence: Sequence) -> bool:
        """Plan a decoding sequence's next token. When no block is free for it, the running sequences of worst rank that
        are not planned yet are preempted; False if it was itself the worst, or if the budget is used up."""
        ...

    def prefill(self, sequence: Sequence, max_tokens: int | None = None) -> int:
        """Plan a chunk of a running prefill; returns its tokens, 0 if it was preempted in this step or the budget is
        used up."""
        ...

    def admit(self, sequence: Sequence, max_tokens: int | None = None, *, whole: bool = False) -> int:
        """Admit a waiting sequence and plan its first chunk, at most `max_tokens`; returns the chunk's tokens, 0 if the
        sequence was refused. `whole`: the whole prompt in this step, or none of it (unless no step has the budget)."""
        ...

    def limit(self, max_tokens: int) -> None:
        """From here on, plan no more than `max_tokens` tokens for this step, drafts included. Chunks planned before
        stay, so that decodes are not held back."""
        ...

    def wait_until(self, when_s: int | float) -> None:
        """If nothing is planned: do not ask again before `when_s`, unless a request comes."""
        ...


class Policy(abc.ABC):
    """Which sequence goes first, and what goes into a step. Implementations are final.

    One order decides which waiting sequence is admitted next (smallest rank) and which running sequence is preempted
    (largest rank). So no sequence is preempted for another that would then be the next victim.

    A policy is told what happens to sequences by `note_waiting`, `note_computed` and `note_ended`, which do nothing
    here. A policy that counts in them returns a copy with new counters from `fresh`:
    `twophase_features.policies.round_robin` is an example. An error in one of them is not caught, and the tokens of the
    step are lost.
    """

    def __repr__(self) -> str:  # for messages; a dataclass has its own
        return type(self).__name__

    @abc.abstractmethod
    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Sort key, fixed for the sequence's life: queues are sorted once, not at every step. Equal ranks go by
        arrival."""

    @abc.abstractmethod
    def plan(self, step: Step) -> None:
        """Plan one step. Planning nothing while something is unfinished is an error, but for `step.wait_until`."""

    def fresh(self) -> "Policy":
        """The policy as one scheduler uses it: the same object, if it counts nothing; otherwise a copy with new
        counters, so that several engines can be given one policy."""
        return self

    def note_waiting(self, sequence: Sequence) -> None:
        """A sequence joins the waiting queue: it is new, or was preempted (`num_preemptions` tells)."""
        return

    def note_computed(self, sequence: Sequence, num_prefill_tokens: int, num_output_tokens: int) -> None:
        """A sequence's chunk has been computed; called before the sequence changes.

        Args:
            num_prefill_tokens: Tokens of a prefill's chunk, after a preemption output tokens too; 0 for a decode.
            num_output_tokens: Tokens that the sequence gets, for all completions that it stands for.
        """
        return

    def note_ended(self, sequence: Sequence) -> None:
        """A sequence has ended, whether it ran or waited; an aborted or failed one too."""
        return


def usable_rank(policy: Policy, sequence: Sequence) -> tuple[Any, ...]:
    """The policy's sort key for a sequence. One that does not sort would make every later step fail.

    Raises:
        InvalidRequestError: The policy raises, or its key is not a tuple of numbers (or of such tuples), or has a NaN.
    """
    request_id = sequence.request.request_id
    try:
        rank = policy.rank(sequence)
    except Exception as error:
        raise InvalidRequestError(
            f"{policy} cannot rank request {request_id!r}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(rank, tuple) or not all(map(_sorts, rank)):
        raise InvalidRequestError(
            f"a rank must be a tuple of numbers, none of them NaN, or queues cannot be sorted by it; {policy} ranks "
            f"request {request_id!r} by {rank!r:.200}; look at its priority, arrival_s and ttft_slo_s."
        )
    return rank


def _sorts(value: object) -> bool:
    return all(map(_sorts, value)) if isinstance(value, tuple) else isinstance(value, Real) and bool(value == value)


# -- the default


@final
@dataclass(frozen=True, slots=True)
class PriorityPolicy(Policy):
    """The default: by priority; decodes first, and the rest of the budget for prefills.

    Attributes:
        patience_s: Ageing. None: priorities are strict, and requests of low priority may starve. Otherwise a request
            passes over another of a priority level better once it has waited `patience_s` seconds longer. (Comparing
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
