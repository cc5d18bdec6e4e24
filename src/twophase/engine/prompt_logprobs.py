"""Log-probabilities of a prompt's own tokens: the logits at each position are those of the token after it.

The rows for all positions of a chunk would be as large as the vocabulary, each. So they come in slices, and what is
kept of a slice is a few numbers per row.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.core.outputs import TokenLogprobs


class ScoredRows(NamedTuple):
    """Rows of logits in a row, those of one chunk.

    Attributes:
        next_ids: The prompt token after each row's position.
        num_top: Of the most likely tokens, so many are reported besides.
    """

    next_ids: Sequence[int]
    num_top: int


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
        """The next rows, in fp32. What is kept stays on their device, so that nobody waits for it in between."""
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
