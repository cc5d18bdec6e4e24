"""Top-k, top-p and min-p: which tokens a draw may take.

They never reorder or gather tokens: each only contributes a lowest weight, and a token is kept when it reaches the
highest of these. Tokens exactly tied with the last one kept are kept too, so that the kept tokens do not depend on the
order in which a device lists equal values.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from twophase.core.request import SamplingParams

TOP_P_CANDIDATES = 256  # nearly always hold the top-p mass; other rows are sorted whole


def truncate(weights: Float[Tensor, "R V"], params: Sequence[SamplingParams]) -> None:
    """Set the weight of each token dropped by its row's top-k, top-p or min-p to 0.

    A weight is a token's probability over that of its row's best token.
    """
    vocab_size = weights.shape[1]
    sorting = [r for r, p in enumerate(params) if 0 < p.top_k < vocab_size or p.top_p < 1]
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
