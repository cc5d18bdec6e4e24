"""What a scheduling policy is: an order, and a plan for one step made with the moves that a step offers."""

import abc
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from twophase.scheduling.ledger import Refusal
from twophase.scheduling.sequence import Sequence


@runtime_checkable
class Step(Protocol):
    """One step being planned, as a policy sees it.

    Blocks, sequence places (one for each completion, `max_num_seqs` in all) and the token budget are kept whatever a
    policy asks for: a move that does not fit plans less, or nothing, and says so. One that makes no sense (the same
    sequence twice, a decode of a prefill) raises PolicyError.

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
        """Sequences that may still be let in."""
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
        """The waiting sequences, best rank first; those let in meanwhile are passed over."""
        ...

    def served(self, tenant: str) -> int:
        """A tenant's counter: see `TenantCounters`."""
        ...

    def refusal_of(self, sequence: Sequence) -> Refusal:
        """Why a waiting sequence is not let in by this step so far; POLICY if it was not asked for."""
        ...

    def decode(self, sequence: Sequence) -> bool:
        """Plan a decoding sequence's next token. When it finds no block, running ones of worst rank, not planned yet,
        are preempted; False if it was itself the worst (now or before), or if the budget is used up."""
        ...

    def prefill(self, sequence: Sequence, max_tokens: int | None = None) -> int:
        """Plan a chunk of a running prefill; returns its tokens, 0 if it was preempted in this step or the budget is
        used up."""
        ...

    def admit(self, sequence: Sequence, max_tokens: int | None = None, *, whole: bool = False) -> int:
        """Let a waiting sequence in and plan its first chunk; returns its tokens, 0 if it was refused (see
        `refusal_of`).

        Args:
            max_tokens: Of the chunk.
            whole: All of its prompt in this step, or not at all (unless it exceeds the budget of any step).
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

    One order decides which sequence is let in next (smallest rank) and which is preempted (largest): so none is
    preempted for another that would then be the next victim.
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
