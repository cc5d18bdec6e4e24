"""Top-k, top-p and min-p: which tokens a draw may take.

They never reorder or gather tokens: each only contributes a lowest weight, and a token is kept when it reaches the
highest of these. Tokens exactly tied with the last one kept are kept too, so that the kept tokens do not depend on the
order in which a device lists equal values.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from twophase.doors import feature
from twophase.engine import sampler
from twophase.engine.runner import Parcel
from twophase.model.machine import prefers_kernels

TOP_P_CANDIDATES = 256  # nearly always hold the top-p mass; other rows are sorted whole


def draw(scores: Float[Tensor, "R V"], best: Float[Tensor, "R"], given: Parcel) -> Int[Tensor, "D"]:
    """As `sampler.draw`, of the tokens that each row's top-k, top-p and min-p keep. `given` has them by row."""
    device = scores.device
    if prefers_kernels(device) and feature("triton.available").runs_triton(device, torch.float32):
        return draw_by_kernels(scores, best, given)
    weights = sampler.weigh(scores, best, given)
    top_k, top_p, min_p = (given[name].cpu().numpy() for name in ("top_k", "top_p", "min_p"))
    if top_k.any() or (top_p < 1).any() or min_p.any():
        on_host = weights.cpu()
        truncate(on_host, top_k, top_p, min_p)
        weights = on_host.to(device)
    return sampler.draw(weights, given)


def draw_by_kernels(scores: Float[Tensor, "R V"], best: Float[Tensor, "R"], given: Parcel) -> Int[Tensor, "D"]:
    """`draw`, sorting nothing and without waiting for the device."""
    from twophase_kernels.sampling import draw_tokens, weigh

    with torch.cuda.device_of(scores):  # Triton launches on the current device
        weights = weigh(scores, given["random_rows"], best, given["temperature"])
        return draw_tokens(weights, *(given[name] for name in ("top_k", "top_p", "min_p", "random_row_of_draw", "u")))


def truncate(
    weights: Float[Tensor, "R V"],
    top_k: Float64[np.ndarray, "R"],
    top_p: Float64[np.ndarray, "R"],
    min_p: Float64[np.ndarray, "R"],
) -> None:
    """Set the weight of each token dropped by its row's top-k, top-p or min-p to 0, on a CPU.

    A weight is a token's probability over that of its row's best token.
    """
    vocab_size = weights.shape[1]
    top_k = np.where(top_k >= vocab_size, 0, top_k).astype(np.int64)
    sorting = np.flatnonzero((top_k > 0) | (top_p < 1))
    lowest = torch.from_numpy(min_p.astype(np.float32))
    if sorting.size:
        chosen = weights if sorting.size == len(top_k) else weights[sorting]
        lowest[sorting] = lowest[sorting].maximum(_top_k_top_p(chosen, top_k[sorting], top_p[sorting]))
    weights.mul_(weights >= lowest[:, None])


def _top_k_top_p(
    weights: Float[Tensor, "R V"], top_k: Int64[np.ndarray, "R"], top_p: Float64[np.ndarray, "R"]
) -> Float[Tensor, "R"]:
    """The lowest weight kept by top-k, then by top-p over the tokens that top-k leaves, renormalised.

    Only the best few tokens are sorted; a row whose top-p mass they do not hold is sorted whole.
    """
    vocab_size = weights.shape[1]
    is_limited, shares = torch.from_numpy(top_k > 0), torch.from_numpy(top_p)
    ranks = np.where(top_k > 0, top_k, min(TOP_P_CANDIDATES, vocab_size))
    candidates = weights.topk(int(ranks.max()), dim=-1).values
    kth = candidates.gather(1, torch.from_numpy(ranks)[:, None] - 1).squeeze(1)
    lowest = torch.where(is_limited, kth, 0.0)
    if (top_p == 1).all():
        return lowest

    wanted = shares * (weights * (weights >= lowest[:, None])).sum(dim=-1, dtype=torch.float64)
    found, is_covered = _first_reaching(candidates, wanted)
    uncovered = (~(is_covered | is_limited)).nonzero().squeeze(1)
    if uncovered.numel():
        found[uncovered], _ = _first_reaching(_sorted(weights[uncovered]), wanted[uncovered])
    return torch.where(shares < 1, lowest.maximum(found), lowest)


def _first_reaching(
    descending: Float[Tensor, "R K"], wanted: Float[Tensor, "R"]
) -> tuple[Float[Tensor, "R"], Bool[Tensor, "R"]]:
    """The weight of each sorted row at which the running sum reaches `wanted`, else the last; and whether it does."""
    first = (descending.cumsum(dim=-1, dtype=torch.float64) < wanted[:, None]).sum(dim=-1)
    last = descending.shape[1] - 1
    return descending.gather(1, first.clamp(max=last)[:, None]).squeeze(1), first <= last


def _sorted(weights: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Each row in descending order. NumPy's vectorised sort takes a thirtieth of torch's time."""
    return torch.from_numpy(np.sort(weights.numpy(), axis=-1)).flip(-1)
