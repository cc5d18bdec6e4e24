"""The door for drafts: a drafter proposes tokens, and one step of the model verifies them.

The speculator asks before each step, and the model draws each token by itself, so a draft cannot change outputs:

    note_plan(plan) -> propose(requests), one for each decode with room for drafts -> ... -> forget(seq_id)
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from twophase.core.plan import ScheduledChunk, StepPlan
from twophase.engine.sampler import SampleRow


class DraftRequest(NamedTuple):
    """A sequence that decodes in this step, and has room for drafts.

    Attributes:
        chunk: Its newest token, and in `num_drafts` how many drafts its block table has room for.
        token_ids: The sequence so far, its newest token included; read-only.
        stop_token_ids: Tokens that end it.
        row_after: The sampling inputs for the token after these drafts, with its position's random number.
        num_allowed: The number of leading drafts that its constraint allows.
        vocab_size: Token ids are below it.
    """

    chunk: ScheduledChunk
    token_ids: Sequence[int]
    stop_token_ids: frozenset[int]
    row_after: Callable[[Sequence[int]], SampleRow]
    num_allowed: Callable[[Sequence[int]], int]
    vocab_size: int


@runtime_checkable
class Drafter(Protocol):
    """Proposes the next tokens of sequences. `LLM(drafter=...)` takes one:

        class Again:
            '''Proposes that the newest token comes again.'''

            def note_plan(self, plan):
                pass

            def propose(self, requests):
                return [[request.token_ids[-1]] * request.chunk.num_drafts for request in requests]

            def forget(self, seq_id):
                pass

    A wrong draft, or an exception, costs time and changes no output.
    """

    def note_plan(self, plan: StepPlan) -> None:
        """The blocks that a step writes, and those copied or loaded for it; called for every step, before `propose`."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """At most `chunk.num_drafts` drafts for each request. Must be safe to repeat."""
        ...

    def forget(self, seq_id: int) -> None:
        """The sequence has ended."""
        ...
