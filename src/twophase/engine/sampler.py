"""From logits to tokens: all rows of a step at once, each row with its own parameters.

A greedy row takes its most likely token. Other rows turn logits into weights and draw by inverse CDF in vocabulary
order. Requests load `score_edits` (biases, penalties, masks), `truncation` and `logprobs` if they ask for them.
"""

import math
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt32
from torch import Tensor
from torch.nn.functional import pad, threshold

from twophase.core.errors import TwophaseError
from twophase.core.plan import Sampled, SampledToken
from twophase.core.request import SamplingParams
from twophase.doors import feature
from twophase.engine.philox import uniforms

MIN_SCORE = -80.0  # a 53-bit uniform cannot hit e**-80; exp near underflow is 30 times slower
CDF_CHUNK = 128  # tokens summed before the CDF is accumulated in fp64


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


def sample(logits: Float[Tensor, "R V"], rows: Sequence[SampleRow]) -> list[Sampled | SamplingError]:
    """Draw `num_samples` tokens for each row; `logits` is fp32 and not changed.

    A row whose largest logit is not finite (NaN, +inf, or nothing but -inf) yields a `SamplingError` in its place and
    leaves the other rows alone.
    """
    scores = logits
    if any(row.is_edited for row in rows):
        scores = feature("score_edits").edited(logits, rows)
    best = scores.max(dim=-1)  # NaN propagates, so one check of the maximum finds every bad row
    row_of_draw = [r for r, row in enumerate(rows) for _ in range(row.num_samples)]
    token_ids = best.indices[row_of_draw]
    random = [r for r, row in enumerate(rows) if not row.params.is_greedy]
    if random:
        random_draws = [d for d, r in enumerate(row_of_draw) if not rows[r].params.is_greedy]
        token_ids[random_draws] = _draw_random(scores, best.values, rows, random)
    tokens = [SampledToken(token_id) for token_id in token_ids.tolist()]
    if any(row.params.logprobs is not None for row in rows):
        tokens = feature("logprobs").with_logprobs(tokens, logits, [row.params for row in rows], row_of_draw)
    drawn = iter(tokens)
    results: list[Sampled | SamplingError] = []
    for row, peak in zip(rows, best.values.tolist(), strict=True):
        run = tuple(islice(drawn, row.num_samples))
        is_finite = -math.inf < peak < math.inf  # false for NaN too
        results.append(run if is_finite else SamplingError(f"the model's logits are not finite (maximum: {peak})"))
    return results


def _draw_random(
    scores: Float[Tensor, "R V"], best: Float[Tensor, "R"], rows: Sequence[SampleRow], random: Sequence[int]
) -> Int[Tensor, "D"]:
    """Apply temperature and truncation to the rows listed in `random`, and draw their D tokens, in row order."""
    device = scores.device
    params = [rows[r].params for r in random]
    # Clamped in float32, because 0 / 0 and -inf / inf (an excluded token's logit) are NaN.
    tiny, huge = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    temperature = torch.tensor([min(max(p.temperature, tiny), huge) for p in params], dtype=torch.float32)
    # Relative to the best token, so that a small temperature cannot overflow: 0 stays 0, other scores may reach -inf.
    relative = scores[random].sub_(best[random][:, None]).div_(temperature.to(device)[:, None])
    weights = threshold(relative.clamp_min_(MIN_SCORE).exp_(), math.exp(MIN_SCORE) * (1 + 1e-6), 0.0)
    if any(p.truncates for p in params):
        feature("truncation").truncate(weights, params)

    draws = [(d, rows[r], i) for d, r in enumerate(random) for i in range(rows[r].num_samples)]
    seeds, positions = [row.seed for _, row, _ in draws], [row.position for _, row, _ in draws]
    u = uniforms(seeds, [row.first_index + i for _, row, i in draws], positions)
    row_of_draw = torch.tensor([d for d, _, _ in draws], device=device)
    return draw(weights, row_of_draw, torch.from_numpy(u).to(device))


def draw(weights: Float[Tensor, "R V"], row_of_draw: Int[Tensor, "D"], u: Float[Tensor, "D"]) -> Int[Tensor, "D"]:
    """Inverse-CDF draws: the first token whose cumulative weight exceeds u times the row's total.

    `weights` need not be normalised; `u` is fp64 in [0, 1). Two levels, because an fp32 running sum over a whole
    vocabulary loses its small terms and an fp64 one costs a pass: chunks of the row are summed first, then the running
    sum of the chunks picks a chunk and a running sum inside it picks the token. Never yields a token of weight 0.
    """
    chunks = pad(weights, (0, -weights.shape[1] % CDF_CHUNK)).unflatten(1, (-1, CDF_CHUNK))
    outer = chunks.sum(dim=-1).double().cumsum(dim=-1)[row_of_draw]
    chunk, fraction = _invert(outer, u)
    inner = chunks[row_of_draw, chunk].double().cumsum(dim=-1)
    token, _ = _invert(inner, fraction)
    return chunk * CDF_CHUNK + token


def _invert(cdf: Float[Tensor, "D K"], u: Float[Tensor, "D"]) -> tuple[Int[Tensor, "D"], Float[Tensor, "D"]]:
    """The first entry whose cumulative weight exceeds u * total, and how far into that entry it is, in [0, 1)."""
    total = cdf[:, -1]
    # u * total may round up to the total, which no entry exceeds.
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cdf, target[:, None], right=True).clamp_max_(cdf.shape[1] - 1)
    upper = cdf.gather(1, found).squeeze(1)
    lower = torch.where(found.squeeze(1) > 0, cdf.gather(1, (found - 1).clamp_min_(0)).squeeze(1), 0.0)
    fraction = (target - lower) / (upper - lower)
    return found.squeeze(1), fraction.clamp_(0.0, 1.0 - 2.0**-53)
