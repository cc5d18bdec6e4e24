"""From logits to tokens: every row of a step at once, each row with its own parameters.

The truncations (top-k, top-p, min-p) never reorder or gather tokens: each only contributes a lowest weight, and a token
is kept when it reaches the highest of these. Tokens exactly tied with the last one kept are kept too, so that the kept
tokens do not depend on the order in which a device lists equal values. Sampling is then one inverse-CDF draw over the
row in vocabulary order.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt32
from torch import Tensor
from torch.nn.functional import pad, threshold

from twophase.core.errors import TwophaseError
from twophase.core.plan import SampledToken
from twophase.core.request import SamplingParams
from twophase.engine.philox import uniforms

TOP_P_CANDIDATES = 256  # nearly always hold the top-p mass; other rows are sorted whole
MIN_SCORE = -80.0  # a 53-bit uniform cannot hit e**-80; exp near underflow is 30 times slower
WORD_BITS = 32  # tokens per word of `SampleRow.allowed`
CDF_CHUNK = 128  # tokens summed before the CDF is accumulated in fp64


class SamplingError(TwophaseError):
    """No token can be drawn from a row of logits."""


class Bias(NamedTuple):
    """A request's `logit_bias` on the host: `values` are added to the logits of the tokens."""

    token_ids: Int64[np.ndarray, "B"]
    values: Float[Tensor, "B"]


def bias_of(params: SamplingParams) -> Bias | None:
    """None: the request has no bias."""
    if not params.logit_bias:
        return None
    token_ids, values = zip(*params.logit_bias, strict=True)
    return Bias(np.array(token_ids, np.int64), torch.tensor(values, dtype=torch.float32))


class SampleRow(NamedTuple):
    """The sampling inputs of one row of logits.

    Attributes:
        params: The request's sampling parameters.
        seed: The request's seed, drawn for it when it gave none.
        first_index: Completion index of the first draw; a prompt with n completions draws for n consecutive indices.
        position: Output position of the token, counted from 0.
        num_samples: Draws from this row, at least one.
        token_ids: The sequence so far, prompt and output; read only when there is a penalty.
        allowed: Tokens that may be drawn: bit i % 32 of word i // 32 is token i's, and tokens beyond the last word are
            excluded. None: any token.
        banned: Tokens that may not be drawn, even if `allowed`.
        bias: `bias_of` the parameters.
    """

    params: SamplingParams
    seed: int
    first_index: int
    position: int
    num_samples: int
    token_ids: Sequence[int]
    allowed: UInt32[np.ndarray, "W"] | None = None
    banned: Collection[int] = ()
    bias: Bias | None = None


def sample(logits: Float[Tensor, "R V"], rows: Sequence[SampleRow]) -> list[tuple[SampledToken, ...] | SamplingError]:
    """Draw `num_samples` tokens for each row; `logits` is fp32 and not changed.

    A row whose largest logit is not finite (NaN, +inf, or nothing but -inf) yields a `SamplingError` in its place and
    leaves the other rows alone.
    """
    scores = logits
    for edit, argument_of in EDITS:
        arguments = {r: each for r, row in enumerate(rows) if (each := argument_of(row)) is not None}
        if arguments:
            scores = logits.clone() if scores is logits else scores
            edit(scores, arguments)
    best = scores.max(dim=-1)  # NaN propagates, so one check of the maximum finds every bad row
    row_of_draw = [r for r, row in enumerate(rows) for _ in range(row.num_samples)]
    token_ids = best.indices[row_of_draw]
    random = [r for r, row in enumerate(rows) if not row.params.is_greedy]
    if random:
        random_draws = [d for d, r in enumerate(row_of_draw) if not rows[r].params.is_greedy]
        token_ids[random_draws] = _draw_random(scores, best.values, rows, random)
    drawn = iter(_with_logprobs(logits, rows, row_of_draw, token_ids))
    results: list[tuple[SampledToken, ...] | SamplingError] = []
    for row, peak in zip(rows, best.values.tolist(), strict=True):
        tokens = tuple(islice(drawn, row.num_samples))
        is_finite = -math.inf < peak < math.inf  # false for NaN too
        results.append(tokens if is_finite else SamplingError(f"the model's logits are not finite (maximum: {peak})"))
    return results


def _add_bias(scores: Float[Tensor, "R V"], biases: Mapping[int, Bias]) -> None:
    at = _places({r: bias.token_ids for r, bias in biases.items()}, scores.device)
    scores[at] += torch.cat([bias.values for bias in biases.values()]).to(scores)


def _penalise_repetition(scores: Float[Tensor, "R V"], rows: Mapping[int, SampleRow]) -> None:
    """Repetition penalty (CTRL, arXiv:1909.05858, section 4.1)."""
    at = _places({r: row.token_ids for r, row in rows.items()}, scores.device)
    penalty_of_row = scores.new_ones(scores.shape[0])
    penalty_of_row[list(rows)] = scores.new_tensor([row.params.repetition_penalty for row in rows.values()])
    seen, penalty = scores[at], penalty_of_row[at[0]]
    # A token seen twice is written twice with the same value, not penalised twice.
    scores[at] = torch.where(seen > 0, seen / penalty, seen * penalty)


def _penalise_output(scores: Float[Tensor, "R V"], rows: Mapping[int, SampleRow]) -> None:
    """Presence and frequency penalties on the tokens of each completion so far."""
    for r, row in rows.items():
        ids, counts = np.unique(np.asarray(row.token_ids[-row.position :]), return_counts=True)
        penalty = row.params.presence_penalty + row.params.frequency_penalty * torch.from_numpy(counts)
        scores[r, torch.from_numpy(ids)] -= penalty.to(scores)


def _constrain(scores: Float[Tensor, "R V"], allowed: Mapping[int, UInt32[np.ndarray, "W"]]) -> None:
    """-inf for every token that is not allowed."""
    words = np.zeros((len(allowed), -(-scores.shape[1] // WORD_BITS)), np.uint32)
    for packed, given in zip(words, allowed.values(), strict=True):
        packed[: len(given)] = given[: len(packed)]
    forbidden = ~unpack(words, scores.shape[1], scores.device)
    scores[list(allowed)] = scores[list(allowed)].masked_fill_(forbidden, -math.inf)


def _ban(scores: Float[Tensor, "R V"], banned: Mapping[int, Collection[int]]) -> None:
    scores[_places(banned, scores.device)] = -math.inf


# In the order of application: a function that changes rows of the scores in place, and its argument for a row, or None.
EDITS: tuple[tuple[Callable[[Tensor, Any], None], Callable[[SampleRow], Any]], ...] = (
    (_add_bias, lambda row: row.bias),
    (_penalise_repetition, lambda row: row if row.params.repetition_penalty != 1 else None),
    (_penalise_output, lambda row: row if row.params.penalises_output and row.position else None),
    (_constrain, lambda row: row.allowed),
    (_ban, lambda row: row.banned or None),
)


def _places(
    ids_of_row: Mapping[int, Collection[int] | Int64[np.ndarray, "B"]], device: torch.device
) -> tuple[Int[Tensor, "N"], Int[Tensor, "N"]]:
    """Indices (row, token id) of all token ids."""
    ids = [x if isinstance(x, np.ndarray) else np.fromiter(x, np.int64, len(x)) for x in ids_of_row.values()]
    row_ids = np.repeat(list(ids_of_row), [len(each) for each in ids])
    return torch.from_numpy(row_ids).to(device), torch.from_numpy(np.concatenate(ids)).to(device)


def unpack(words: UInt32[np.ndarray, "R W"], num_bits: int, device: torch.device) -> Bool[Tensor, "R V"]:
    """The first `num_bits` bits of each row, the lowest bit of a word first.

    Words travel to a GPU packed, which is an eighth of the bytes. On a CPU NumPy's unpacking takes a fiftieth of the
    time of shifting in torch.
    """
    octets = words.astype("<u4", copy=False).view(np.uint8)
    if device.type == "cpu":
        return torch.from_numpy(np.unpackbits(octets, axis=1, bitorder="little", count=num_bits)).bool()
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    return (torch.from_numpy(octets).to(device)[:, :, None] >> shifts & 1).flatten(1)[:, :num_bits].bool()


def _draw_random(
    scores: Float[Tensor, "R V"], best: Float[Tensor, "R"], rows: Sequence[SampleRow], random: Sequence[int]
) -> Int[Tensor, "D"]:
    """Temperature, truncation and the draws of the rows listed in `random`, in row order."""
    device = scores.device
    params = [rows[r].params for r in random]
    # Within float32: 0 would divide 0 by 0, and inf a forbidden token's -inf, either of which is NaN.
    tiny, huge = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    temperature = torch.tensor([min(max(p.temperature, tiny), huge) for p in params], dtype=torch.float32)
    # Relative to the best token, so that no temperature can overflow: 0 stays 0 and the rest may reach -inf.
    relative = scores[random].sub_(best[random][:, None]).div_(temperature.to(device)[:, None])
    weights = threshold(relative.clamp_min_(MIN_SCORE).exp_(), math.exp(MIN_SCORE) * (1 + 1e-6), 0.0)
    truncate(weights, params)

    draws = [(d, rows[r], i) for d, r in enumerate(random) for i in range(rows[r].num_samples)]
    seeds, positions = [row.seed for _, row, _ in draws], [row.position for _, row, _ in draws]
    u = uniforms(seeds, [row.first_index + i for _, row, i in draws], positions)
    row_of_draw = torch.tensor([d for d, _, _ in draws], device=device)
    return draw(weights, row_of_draw, torch.from_numpy(u).to(device))


def truncate(weights: Float[Tensor, "R V"], params: Sequence[SamplingParams]) -> None:
    """Set the weight of each token dropped by its row's top-k, top-p or min-p to 0.

    A weight is a token's probability over that of its row's best token.
    """
    vocab_size = weights.shape[1]
    sorting = [r for r, p in enumerate(params) if 0 < p.top_k < vocab_size or p.top_p < 1]
    if not sorting and not any(p.min_p for p in params):
        return
    lowest = torch.tensor([p.min_p for p in params], dtype=torch.float32, device=weights.device)
    if sorting:
        chosen = weights if len(sorting) == len(params) else weights[sorting]
        lowest[sorting] = lowest[sorting].maximum(_top_k_top_p(chosen, [params[r] for r in sorting]))
    weights.mul_(weights >= lowest[:, None])


def _top_k_top_p(weights: Float[Tensor, "R V"], params: Sequence[SamplingParams]) -> Float[Tensor, "R"]:
    """The lowest weight kept by top-k, then by top-p over the tokens that top-k leaves, renormalised.

    Only the best few tokens are sorted; a row whose top-p mass they do not hold is sorted whole.
    """
    vocab_size = weights.shape[1]
    ranks = [p.top_k if 0 < p.top_k < vocab_size else min(TOP_P_CANDIDATES, vocab_size) for p in params]
    candidates = weights.topk(max(ranks), dim=-1).values
    is_limited = torch.tensor([0 < p.top_k < vocab_size for p in params], device=weights.device)
    kth = candidates.gather(1, torch.tensor(ranks, device=weights.device)[:, None] - 1).squeeze(1)
    lowest = torch.where(is_limited, kth, 0.0)
    if all(p.top_p == 1 for p in params):
        return lowest

    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=weights.device)
    wanted = top_p * (weights * (weights >= lowest[:, None])).sum(dim=-1, dtype=torch.float64)
    found, is_covered = _first_reaching(candidates, wanted)
    uncovered = (~(is_covered | is_limited)).nonzero().squeeze(1)
    if uncovered.numel():
        found[uncovered], _ = _first_reaching(_sorted(weights[uncovered]), wanted[uncovered])
    return torch.where(top_p < 1, lowest.maximum(found), lowest)


def _first_reaching(
    descending: Float[Tensor, "R K"], wanted: Float[Tensor, "R"]
) -> tuple[Float[Tensor, "R"], Bool[Tensor, "R"]]:
    """The weight of each sorted row at which the running sum reaches `wanted`, else the last; and whether it does."""
    first = (descending.cumsum(dim=-1, dtype=torch.float64) < wanted[:, None]).sum(dim=-1)
    last = descending.shape[1] - 1
    return descending.gather(1, first.clamp(max=last)[:, None]).squeeze(1), first <= last


def _sorted(weights: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Each row in descending order. NumPy's vectorised sort takes a thirtieth of torch's time on a CPU."""
    if weights.device.type != "cpu":
        return weights.sort(dim=-1, descending=True).values
    return torch.from_numpy(np.sort(weights.numpy(), axis=-1)).flip(-1)


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


def _with_logprobs(
    logits: Float[Tensor, "R V"], rows: Sequence[SampleRow], row_of_draw: Sequence[int], token_ids: Int[Tensor, "D"]
) -> list[SampledToken]:
    """The drawn tokens; if requested, with log-probabilities of the model's own distribution."""
    drawn = [SampledToken(token_id) for token_id in token_ids.tolist()]
    num_top = {r: row.params.logprobs for r, row in enumerate(rows) if row.params.logprobs is not None}
    if not num_top:
        return drawn
    temperature = logits.new_tensor([rows[r].params.logprobs_temperature for r in num_top])
    logprobs = logits[list(num_top)].div_(temperature[:, None]).log_softmax(dim=-1)
    top = logprobs.topk(min(max(num_top.values()), logprobs.shape[1]), dim=-1)
    ranked = [tuple(zip(*best, strict=True)) for best in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
    place = {r: i for i, r in enumerate(num_top)}
    asking = [(d, r, place[r]) for d, r in enumerate(row_of_draw) if r in place]
    chosen = logprobs[[i for _, _, i in asking], token_ids[[d for d, _, _ in asking]]].tolist()
    for (d, r, i), logprob in zip(asking, chosen, strict=True):
        drawn[d] = SampledToken(drawn[d].token_id, logprob, ranked[i][: num_top[r]])
    return drawn
