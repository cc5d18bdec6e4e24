"""From logits to tokens: all rows of a step at once, each row with its own parameters.

A greedy row takes its most likely token. Other rows turn logits into weights and draw by inverse CDF in vocabulary
order. Requests load `score_edits` (biases, penalties, masks), `truncation` and `logprobs` if they ask for them.
"""

import math
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt32
from torch import Tensor
from torch.nn.functional import pad

from twophase.core.errors import TwophaseError
from twophase.core.plan import Sampled, SampledToken
from twophase.core.request import SamplingParams
from twophase.doors import feature
from twophase.engine.philox import uniforms
from twophase.engine.runner import Parcel, read
from twophase.model.machine import prefers_kernels

UNIT = 2.0**-40  # of weights: a token that weighs less than this, where the row's best token weighs 1, is never drawn
CHUNK = 128  # tokens
MIN_SCORE = -28.0  # of which the weight is below UNIT; exp near underflow is 30 times slower


class SamplingError(TwophaseError):
    """No token can be drawn from a row of logits."""


class SampleRow(NamedTuple):
    """The sampling inputs of one row of logits.

    Attributes:
        seed: The request's own seed, or the seed that the engine drew for it.
        first_index: Completion index of the first draw; a prompt with n completions draws for n consecutive indices.
        position: Output position of the token, counted from 0.
        num_samples: Draws from this row, at least one.
        token_ids: The sequence so far, prompt and output; read only when there is a penalty.
        allowed: Bitmask of tokens that may be drawn, see `Constraint.allowed_after`; None: any token.
        banned: Tokens that may not be drawn, even if `allowed`.
        bias: The request's `logit_bias`, as `score_edits.bias_of` makes it; None: no bias.
    """

    params: SamplingParams
    seed: int
    first_index: int
    position: int
    num_samples: int
    token_ids: Sequence[int]
    allowed: UInt32[np.ndarray, "W"] | None = None
    banned: Collection[int] = ()
    bias: Any = None

    @property
    def is_edited(self) -> bool:
        """Whether the row's scores differ from its logits before a token is drawn."""
        has_penalty = self.params.repetition_penalty != 1 or self.params.penalises_output
        return has_penalty or bool(self.banned) or self.bias is not None or self.allowed is not None


def sample(
    logits: Float[Tensor, "R V"], rows: Sequence[SampleRow], before_wait: Callable[[Tensor], Any] = id
) -> list[Sampled | SamplingError]:
    """Draw `num_samples` tokens for each row; `logits` is fp32 and not changed. The host waits for the device once;
    until then `before_wait`, given the token ids, int64 [D], may queue more work there.

    A row whose largest logit is not finite (NaN, +inf, or nothing but -inf) yields a `SamplingError` in its place and
    leaves the other rows alone.
    """
    params = [row.params for row in rows]
    draws = [(r, i) for r, row in enumerate(rows) for i in range(row.num_samples)]
    row_of_draw = [r for r, _ in draws]
    arrays: dict[str, Any] = {"row_of_draw": np.array(row_of_draw)}
    edits = feature("score_edits") if any(row.is_edited for row in rows) else None
    scoring = feature("logprobs") if any(p.logprobs is not None for p in params) else None
    is_random = not all(p.is_greedy for p in params)
    arrays |= edits.arrays(rows) if edits else {}
    arrays |= scoring.arrays(params, row_of_draw) if scoring else {}
    arrays |= _random_arrays(rows, draws) if is_random else {}
    given = Parcel.of(arrays, logits.device)

    scores = edits.edited(logits, given) if edits else logits
    best = scores.max(dim=-1)  # NaN propagates, so one check of the maximum finds every bad row
    token_ids = best.indices[given["row_of_draw"]]
    if is_random:
        if prefers_kernels(logits.device) or any(p.truncates for p in params):
            drawn = feature("truncation").draw(scores, best.values, given)
        else:
            drawn = draw(weigh(scores, best.values, given), given)
        token_ids[given["random_draws"]] = drawn
    extra = scoring.logprobs_of(token_ids, logits, params, given) if scoring else []
    chosen, peaks, *scored = read([token_ids, best.values, *extra], lambda: before_wait(token_ids))

    tokens = [SampledToken(int(token_id)) for token_id in chosen]
    each = iter(scoring.with_logprobs(tokens, params, row_of_draw, *scored) if scoring else tokens)
    runs = [tuple(islice(each, row.num_samples)) for row in rows]
    return [
        run if -math.inf < peak < math.inf else SamplingError(f"the model's logits are not finite (maximum: {peak})")
        for run, peak in zip(runs, peaks.tolist(), strict=True)  # NaN is not between them, either
    ]


def _random_arrays(rows: Sequence[SampleRow], draws: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The random rows: their parameters, and their draws, in row order."""
    place = {r: i for i, r in enumerate(r for r, row in enumerate(rows) if not row.params.is_greedy)}
    params = [rows[r].params for r in place]
    chosen = [(d, rows[r], i) for d, (r, i) in enumerate(draws) if r in place]
    seeds, positions = [row.seed for _, row, _ in chosen], [row.position for _, row, _ in chosen]
    # Clamped in float32, because 0 / 0 and -inf / inf (an excluded token's logit) are NaN.
    tiny, huge = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    return {
        "random_rows": np.array(list(place)),
        "random_draws": np.array([d for d, _, _ in chosen]),
        "random_row_of_draw": np.array([place[draws[d][0]] for d, _, _ in chosen]),
        "temperature": np.array([min(max(p.temperature, tiny), huge) for p in params], np.float32),
        "u": uniforms(seeds, [row.first_index + i for _, row, i in chosen], positions),
        **{name: np.array([getattr(p, name) for p in params], np.float64) for name in ("top_k", "top_p", "min_p")},
    }


def weigh(scores: Float[Tensor, "R V"], best: Float[Tensor, "R"], given: Parcel) -> Float[Tensor, "N V"]:
    """The random rows' weights: a token's probability over that of its row's best token."""
    rows = given["random_rows"]
    # Relative to the best token, so that a small temperature cannot overflow: 0 stays 0, other scores may reach -inf.
    relative = scores[rows].sub_(best[rows][:, None]).div_(given["temperature"][:, None])
    return relative.clamp_min_(MIN_SCORE).exp_()


def draw(weights: Float[Tensor, "N V"], given: Parcel) -> Int[Tensor, "D"]:
    """Inverse-CDF draws: the first token whose cumulative weight exceeds u times the row's total.

    `weights` are in [0, 1], and need not be normalised; `u` is fp64 in [0, 1). Sums of weights in units of `UNIT` are
    whole numbers, exact in any order, so a draw is the same on every device. Never yields a token of weight 0.
    """
    row_of_draw, num_tokens = given["random_row_of_draw"], weights.shape[1]
    masses = pad(weights, (0, -num_tokens % CHUNK)).mul_(1 / UNIT).long().unflatten(1, (-1, CHUNK))
    cdf = masses.sum(dim=-1).cumsum(dim=-1)[row_of_draw]  # of chunks, since a running sum of all tokens takes longer
    total = cdf[:, -1:]
    target = (given["u"][:, None] * total).long().minimum(total - 1)  # u * total may round up to the total
    chunk = torch.searchsorted(cdf, target, right=True).clamp_max_(cdf.shape[1] - 1)  # beyond it only in a row of NaN
    inner = masses[row_of_draw, chunk.squeeze(1)].cumsum(dim=-1)
    token = torch.searchsorted(inner, target - cdf.gather(1, chunk) + inner[:, -1:], right=True)
    return (chunk * CHUNK + token).squeeze(1).clamp_max_(num_tokens - 1)
