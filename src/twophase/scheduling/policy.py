"""What a scheduling policy is: an order, and a plan for one step made with the moves that a step offers."""

import abc
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from twophase.scheduling.ledger import Refusal
from twophase.scheduling.sequence import Sequence


@runtime_checkable
class Step(Protocol):
    """One step being planned, as a policy sees it.

    A step keeps to the blocks, the places (one for each completion, `max_num_seqs` in all) and the token budget,
    whatever a policy asks for: a move that does not fit plans less, or nothing, and says so. A move that makes no sense
    (the same sequence twice, a decode of a prefill) raises PolicyError.

    Attributes:
        now_s: The engine's clock.
        num_stalled_steps: Steps in a row in which a sequence was ready to decode and none did.
    """

    now_s: int | float
    num_stalled_steps: int

    @property
    def budget(self) -> int:
        """Tokens that this step can still compute."""
        ...

    @property
    def num_free_places(self) -> int:
        """Completions that may still be admitted."""
        ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def is_empty(self) -> bool:
        """Whether nothing is planned yet."""
        ...

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The running sequences, best rank first."""
        ...

    @property
    def waiting(self) -> Iterator[Sequence]:
        """The waiting sequences, best rank first; sequences admitted meanwhile are passed over."""
        ...

    def refusal_of(self, sequence: Sequence) -> Refusal:
        """Why this step has not admitted a waiting sequence so far; POLICY if the policy did not ask for it."""
        ...

    def decode(self, sequence: Sequence) -> bool:
        """Plan a decoding sequence's next token. When no block is free for it, the running sequences of worst rank that
        are not planned yet are preempted; False if the sequence was itself the worst (now or before), or if the budget
        is used up."""
        ...

    def prefill(self, sequence: Sequence, max_tokens: int | None = None) -> int:
        """Plan a chunk of a running prefill; returns its tokens, 0 if it was preempted in this step or the budget is
        used up."""
        ...

    def admit(self, sequence: Sequence, max_tokens: int | None = None, *, whole: bool = False) -> int:
        """Admit a waiting sequence and plan its first chunk; returns the chunk's tokens, 0 if the sequence was refused
        (see `refusal_of`).

        Args:
            max_tokens: The most tokens of the chunk.
            whole: Plan the whole prompt in this step, or do not admit it (unless it exceeds the budget of any step).
        """
        ...

    def limit(self, max_tokens: int) -> None:
        """From here on, plan no more than `max_tokens` tokens for this step, drafts included. What is planned already
        stays, so decodes are not held back when they are planned before."""
        ...

    def wait_until(self, when_s: int | float) -> None:
        """If nothing is planned: do not ask again before `when_s`, unless a request comes."""
        ...


class Policy(abc.ABC):
    """Which sequence goes first, and what goes into a step. Implementations are final.

    One order decides which waiting sequence is admitted next (smallest rank) and which running sequence is preempted
    (largest rank). So no sequence is preempted for another that would then be the next victim.

    A policy learns what it admitted from its own moves, and is told the rest by `note_waiting`, `note_computed` and
    `note_ended`, which do nothing here. A policy that counts in them keeps the counters itself, and returns a copy with
    new counters from `fresh`: `twophase_features.policies.round_robin` is an example. An error in one of them is not
    caught, and the tokens of the step are lost.
    """

    def __repr__(self) -> str:
        """As messages name it. A dataclass has a repr of its own."""
        return type(self).__name__

    @abc.abstractmethod
    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Sort key, unique and fixed for the sequence's life: queues are sorted once, not at every step."""

    @abc.abstractmethod
    def plan(self, step: Step) -> None:
        """Plan one step. Planning nothing while something is unfinished is an error, but for `step.wait_until`."""

    def fresh(self) -> "Policy":
        """The policy as one scheduler uses it, asked for when the scheduler gets it: the same object, if it counts
        nothing; otherwise a copy with new counters, so that several engines can be given one policy."""
        return self

    def note_waiting(self, sequence: Sequence) -> None:
        """A sequence joins the waiting queue: it is new, or was preempted (`num_preemptions` tells)."""
        return

    def note_computed(self, sequence: Sequence, num_prefill_tokens: int, num_output_tokens: int) -> None:
        """A sequence's chunk has been computed; called before the sequence changes.

        Args:
            num_prefill_tokens: Tokens of a prefill's chunk, output tokens among them after a preemption; 0 for a
                decode.
            num_output_tokens: Tokens that the sequence gets, for all completions that it stands for.
        """
        return

    def note_ended(self, sequence: Sequence) -> None:
        """A sequence has ended, whether it ran or waited; an aborted or failed one too."""
        return
