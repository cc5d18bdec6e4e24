"""N-gram lookup in the text so far, and the check of a drafter's tokens."""

from collections.abc import Sequence
from typing import final

from twophase.core.plan import StepPlan
from twophase_features.speculation.drafter import DraftRequest


def usable(drafts: Sequence[int], vocab_size: int, stop_token_ids: frozenset[int]) -> list[int]:
    """The drafts before the first invalid token id, or up to the first token that ends the sequence.

    Worked example, 10 tokens, stop id 9: [3, 9, 4] is cut to [3, 9], [3, 12, 4] to [3].
    """
    kept: list[int] = []
    for draft in drafts:
        if not 0 <= draft < vocab_size:
            break
        kept.append(int(draft))
        if draft in stop_token_ids:
            break
    return kept


@final
class NgramIndex:
    """The position after the latest occurrence of each n-gram in one growing text. Reads every token once.

    Args:
        min_tokens, max_tokens: n, from .. to.
    """

    def __init__(self, min_tokens: int, max_tokens: int) -> None:
        self._sizes = range(max_tokens, min_tokens - 1, -1)
        self._num_read = 0
        self._end_of: dict[tuple[int, ...], int] = {}  # n-gram -> position after its latest occurrence

    def lookup(self, token_ids: Sequence[int], max_drafts: int) -> list[int]:
        """The continuation of the longest earlier occurrence of the last tokens; of equal ones, the latest.

        A continuation that reaches the end of the text goes on with itself, as a copy in LZ77 does.

        Worked example, n from 1 to 3: after [7, 1, 2, 3, 4, 1, 2] the last two tokens were followed by 3, so three
        drafts are [3, 4, 1]. After [5, 6, 5, 6] they are [5, 6, 5].

        Args:
            token_ids: The text; since the last call it may only have grown.
        """
        num_tokens = len(token_ids)
        # The n-grams at the very end are looked up, not found.
        for end in range(self._num_read + 1, num_tokens):
            for size in self._sizes:
                if size <= end:
                    self._end_of[tuple(token_ids[end - size : end])] = end
        self._num_read = max(0, num_tokens - 1)
        for size in self._sizes:
            found = self._end_of.get(tuple(token_ids[-size:])) if size <= num_tokens else None
            if found is not None:
                return [token_ids[found + i % (num_tokens - found)] for i in range(max_drafts)]
        return []


@final
class NgramDrafter:
    """Prompt lookup: the continuation of an earlier occurrence of the newest tokens, in prompt or output.

    Wins where a text repeats its prompt: extraction, summaries, edits, code (A. Saxena, "Prompt lookup decoding",
    2023).
    """

    def __init__(self, min_tokens: int = 1, max_tokens: int = 3) -> None:
        self._min_tokens, self._max_tokens = min_tokens, max_tokens
        self._indices: dict[int, NgramIndex] = {}

    def note_plan(self, plan: StepPlan) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        drafts = []
        for request in requests:
            seq_id = request.chunk.seq_id
            if seq_id not in self._indices:
                self._indices[seq_id] = NgramIndex(self._min_tokens, self._max_tokens)
            drafts.append(self._indices[seq_id].lookup(request.token_ids, request.chunk.num_drafts))
        return drafts

    def forget(self, seq_id: int) -> None:
        self._indices.pop(seq_id, None)
