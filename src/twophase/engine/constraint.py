"""The door for structured outputs: a constraint tells which tokens a completion may have next.

`SamplingParams.structured_outputs` -> Engine's `compile_grammar` -> Grammar, one for a request
                                    -> Grammar.constraint         -> Constraint, one for each of its completions
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt32


@runtime_checkable
class Constraint(Protocol):
    """Which tokens one completion may have next, as a function of the tokens that it has:

        class EvenTokens:
            '''Allows every second token of the vocabulary.'''

            def allowed_after(self, token_ids, num_prompt_tokens, drafts=()):
                return np.full(num_words, 0x5555_5555, np.uint32)

            def num_allowed(self, token_ids, num_prompt_tokens, drafts):
                return next((i for i, draft in enumerate(drafts) if draft % 2), len(drafts))

    A call may be repeated, by a failed step or after a preemption. An exception ends only this completion.
    """

    def allowed_after(
        self, token_ids: Sequence[int], num_prompt_tokens: int, drafts: Sequence[int] = ()
    ) -> UInt32[np.ndarray, "W"]:
        """Bit i % 32 of word i // 32 is set if token i may come next; tokens beyond the last word may not.

        Args:
            token_ids: The prompt, of `num_prompt_tokens`, and the completion's tokens so far.
            drafts: Draft tokens after `token_ids`; the constraint's own state stays before them.
        """
        ...

    def num_allowed(self, token_ids: Sequence[int], num_prompt_tokens: int, drafts: Sequence[int]) -> int:
        """The number of leading drafts that are allowed in sequence. End tokens are not counted."""
        ...


@runtime_checkable
class Grammar(Protocol):
    """The form that a request's outputs must have."""

    def constraint(self) -> Constraint:
        """A new completion's constraint."""
        ...

    def accepts(self, text: str) -> bool:
        """Whether `text` is complete, so that a stop string may end it."""
        ...
