"""Log-probabilities of a prompt's own tokens: the logits at each position score the next token.

A row of logits is as wide as the vocabulary, so a chunk's rows come in slices, and only a few numbers of each row are
kept.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.core.plan import ScheduledChunk
from twophase.core.request import TokenLogprobs
from twophase.engine.request_state import RequestState


class ScoredRows(NamedTuple):
    """Consecutive rows of logits, all of one chunk.

    Attributes:
        next_ids: The prompt token after each row's position.
        num_top: Number of the most likely tokens that are reported besides.
    """

    next_ids: Sequence[int]
    num_top: int


def with_num_scored(chunk: ScheduledChunk, state: RequestState) -> ScheduledChunk:
    """The chunk, and the number of its rows that score a prompt token with a missing log-probability."""
    if state.prompt_logprobs is None:
        return chunk
    num_prompt_tokens = len(state.request.prompt_token_ids)
    if len(state.prompt_logprobs) == num_prompt_tokens:
        return chunk
    return chunk._replace(num_scored=max(0, min(len(chunk.token_ids), num_prompt_tokens - 1 - chunk.start)))


def scored_rows(chunk: ScheduledChunk, state: RequestState) -> ScoredRows:
    known, num_top = state.prompt_logprobs, state.request.sampling_params.prompt_logprobs
    assert known is not None
    assert num_top is not None
    first = chunk.start + 1
    assert first <= len(known), f"prompt positions from {len(known) - 1} to {chunk.start} were never computed"
    return ScoredRows(state.request.prompt_token_ids[first : first + chunk.num_scored], num_top)


def note_scores(chunk: ScheduledChunk, state: RequestState, entries: Sequence[TokenLogprobs]) -> None:
    """Keep the entries of a chunk's prompt tokens. A recomputed chunk replaces its earlier entries."""
    assert state.prompt_logprobs is not None
    state.prompt_logprobs[chunk.start + 1 :] = entries


@final
class PromptScorer:
    """Takes the logits of `wanted`, in order, in slices of any size; then has the log-probabilities, in nats."""

    def __init__(self, wanted: Sequence[ScoredRows]) -> None:
        self._wanted = wanted
        self._next_ids = [token_id for rows in wanted for token_id in rows.next_ids]
        self._num_top = max((rows.num_top for rows in wanted), default=0)
        self._num_taken = 0
        self._slices: list[tuple[Tensor, Tensor, Tensor]] = []

    def take(self, logits: Float[Tensor, "R V"]) -> None:
        """The next rows, in fp32. Numbers that are kept stay on the device, so the host does not wait."""
        logprobs = logits.log_softmax(dim=-1)
        next_ids = self._next_ids[self._num_taken : self._num_taken + len(logits)]
        own = logprobs.gather(1, torch.tensor(next_ids, device=logits.device)[:, None]).squeeze(1)
        best = logprobs.topk(min(self._num_top, logits.shape[1]), dim=-1)
        self._slices.append((own, best.indices, best.values))
        self._num_taken += len(logits)

    def results(self) -> list[tuple[TokenLogprobs, ...]]:
        """An entry per row, for each of `wanted`."""
        if not self._slices:
            return [()] * len(self._wanted)
        own, indices, values = (torch.cat(parts).tolist() for parts in zip(*self._slices, strict=True))
        ranked = (tuple(zip(*best, strict=True)) for best in zip(indices, values, strict=True))
        entries = zip(self._next_ids, own, ranked, strict=True)
        return [
            tuple(
                TokenLogprobs(token_id, x, top[: rows.num_top])
                for token_id, x, top in islice(entries, len(rows.next_ids))
            )
            for rows in self._wanted
        ]
