"""Log-probabilities in nats: of drawn tokens, and of a prompt's own, where each position scores the next token."""

from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from twophase.core.plan import SampledToken, ScheduledChunk
from twophase.core.request import SamplingParams, TokenLogprobs
from twophase.engine.model_run import BatchEntry
from twophase.engine.request_state import RequestState
from twophase.engine.runner import Parcel
from twophase_features.step_memory import SCORED_ROWS


def arrays(params: Sequence[SamplingParams], row_of_draw: Sequence[int]) -> dict[str, Any]:
    """Rows that ask for log-probabilities, and their draws, as `logprobs_of` needs them on the device."""
    place = {r: i for i, r in enumerate(r for r, p in enumerate(params) if p.logprobs is not None)}
    draws = [d for d, r in enumerate(row_of_draw) if r in place]
    return {
        "asking_rows": np.array(list(place)),
        "asking_temperature": np.array([getattr(params[r], "logprobs_temperature", 1) for r in place], np.float32),
        "asking_draws": np.array(draws),
        "asking_row_of_draw": np.array([place[row_of_draw[d]] for d in draws]),
    }


def logprobs_of(
    token_ids: Int[Tensor, "D"], logits: Float[Tensor, "R V"], params: Sequence[SamplingParams], given: Parcel
) -> list[Tensor]:
    """Each asking draw's log-probability, and the best tokens of its row with theirs, by the model's distribution."""
    num_top = max(p.logprobs or 0 for p in params)
    logprobs = logits[given["asking_rows"]].div_(given["asking_temperature"][:, None]).log_softmax(dim=-1)
    top = logprobs.topk(min(num_top, logprobs.shape[1]), dim=-1)
    return [logprobs[given["asking_row_of_draw"], token_ids[given["asking_draws"]]], top.indices, top.values]


def with_logprobs(
    tokens: Sequence[SampledToken],
    params: Sequence[SamplingParams],
    row_of_draw: Sequence[int],
    chosen: Float64[np.ndarray, "A"],
    top_ids: Float64[np.ndarray, "P K"],
    top_logprobs: Float64[np.ndarray, "P K"],
) -> list[SampledToken]:
    """The drawn tokens; where a row asks for it, with the log-probabilities that `logprobs_of` found."""
    best = [
        tuple(zip(map(int, ids), values.tolist(), strict=True))
        for ids, values in zip(top_ids, top_logprobs, strict=True)
    ]
    ranked = dict(zip((r for r, p in enumerate(params) if p.logprobs is not None), best, strict=True))
    found, own = list(tokens), iter(chosen.tolist())
    for d, r in enumerate(row_of_draw):
        if r in ranked:
            found[d] = SampledToken(tokens[d].token_id, next(own), ranked[r][: params[r].logprobs])
    return found


def scored(batch: Sequence[BatchEntry]) -> tuple[list[ScheduledChunk], "PromptScorer"]:
    """The chunks of a batch with `num_scored`, and the scorer that takes the logits of the rows."""
    chunks = [each.chunk._replace(num_scored=_num_scored(each)) for each in batch]
    wanted = [(chunk, each.state) for chunk, each in zip(chunks, batch, strict=True) if chunk.num_scored]
    return chunks, PromptScorer(wanted)


def score_rows(
    chunks: Sequence[ScheduledChunk],
    hidden: Float[Tensor, "T N"],
    logits: Callable[[Tensor], Tensor],
    take: Callable[[Tensor], None],
) -> None:
    """`take` gets the logits of the chunks' `num_scored` first tokens, in order, `SCORED_ROWS` at a time."""
    starts = accumulate((len(chunk.token_ids) for chunk in chunks), initial=0)
    scored = [start + row for start, c in zip(starts, chunks, strict=False) for row in range(c.num_scored)]
    for first in range(0, len(scored), SCORED_ROWS):
        take(logits(hidden[torch.tensor(scored[first : first + SCORED_ROWS], device=hidden.device)]))


def _num_scored(entry: BatchEntry) -> int:
    """The number of the chunk's rows that score a prompt token whose log-probability is missing."""
    chunk, known = entry.chunk, entry.state.prompt_logprobs
    num_prompt_tokens = len(entry.state.request.prompt_token_ids)
    if known is None or len(known) == num_prompt_tokens:
        return 0
    if chunk.start >= len(known):
        raise RuntimeError(f"prompt positions from {len(known) - 1} to {chunk.start} were never computed.")
    return max(0, min(len(chunk.token_ids), num_prompt_tokens - 1 - chunk.start))


@final
class PromptScorer:
    """Takes the logits of the scored rows, in order, in slices of any size; then the requests get their entries.

    A row of logits is as wide as the vocabulary, so only a few numbers of each row are kept.

    Args:
        wanted: Chunks with scored rows, and the states of their requests.
    """

    def __init__(self, wanted: Sequence[tuple[ScheduledChunk, RequestState]]) -> None:
        self._wanted = wanted
        self._next_ids = [
            token_id
            for chunk, state in wanted
            for token_id in state.request.prompt_token_ids[chunk.start + 1 :][: chunk.num_scored]
        ]
        self._num_top = max((_num_top(state) for _, state in wanted), default=0)
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

    def note(self) -> None:
        """Give each request the log-probabilities, in nats. A recomputed chunk replaces its earlier entries."""
        if not self._slices:
            return
        own, indices, values = (torch.cat(parts).tolist() for parts in zip(*self._slices, strict=True))
        ranked = (tuple(zip(*best, strict=True)) for best in zip(indices, values, strict=True))
        entries = zip(self._next_ids, own, ranked, strict=True)
        for chunk, state in self._wanted:
            assert state.prompt_logprobs is not None
            state.prompt_logprobs[chunk.start + 1 :] = [
                TokenLogprobs(token_id, logprob, top[: _num_top(state)])
                for token_id, logprob, top in islice(entries, chunk.num_scored)
            ]


def _num_top(state: RequestState) -> int:
    return state.request.sampling_params.prompt_logprobs or 0
