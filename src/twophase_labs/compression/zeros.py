"""What section 8 measures: weights set to zero; products that leave zeros out."""

import warnings
from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from twophase_labs.compression.changed_model import linears, perplexity
from twophase_labs.kit.draw import done, one_axes
from twophase_labs.kit.timing import seconds
from twophase_tools.colours import COLOURS, INK, LINE

NUM_TOKENS = 256  # enough for ratios of 2 and more
SHAPE = (1536, 576)  # of an up projection


@cache
def _limits(shares: tuple[float, ...]) -> dict[tuple[str, float], float]:
    """For each weight and share, the magnitude that this share of its elements does not exceed."""
    found = {}
    for name, module in linears().items():
        sizes = module.weight.data.abs().flatten().numpy()
        places = [max(0, round(share * len(sizes)) - 1) for share in shares]
        parted = np.partition(sizes, places)
        found.update({(name, share): float(parted[at]) for share, at in zip(shares, places, strict=True)})
    return found


def pruned_perplexities(shares: tuple[float, ...]) -> dict[float, float]:
    """SmolLM2's, relative to its own, with this share of each weight zero."""
    base, limits = perplexity(num_tokens=NUM_TOKENS), _limits(shares)
    found = {}
    for share in shares:

        def pruned(name: str, weight: Tensor, share: float = share) -> Tensor:
            return weight.masked_fill_(weight.abs() <= limits[name, share], 0.0)

        found[share] = perplexity(pruned, num_tokens=NUM_TOKENS) / base
    return found


def draw_cliff(found: Mapping[float, float]) -> Figure:
    """Perplexity, relative to the model's own, against the share of zeros."""
    figure, axes = one_axes(7.6, 3.4)
    shares = [100 * share for share in found]
    axes.plot(shares, list(found.values()), "o-", color=COLOURS[0])
    for share, ratio in zip(shares, found.values(), strict=True):
        text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"
        axes.annotate(text, (share, ratio), (0, 8), textcoords="offset points", ha="center", fontsize=9, color=INK)
        if ratio < 1:
            why = f"below 1: within the noise of {NUM_TOKENS} tokens"
            axes.annotate(why, (share, ratio), (8, -13), textcoords="offset points", fontsize=9, color=INK)
    axes.axhline(1, color=LINE, linewidth=1)
    axes.set_yscale("log")
    axes.set_ylim(0.6, 4 * max(found.values()))
    axes.set(xlabel="weights that are zero, the smallest of each matrix, %", ylabel="perplexity / its own")
    axes.set_title("SmolLM2 with its smallest weights set to zero", loc="left", fontsize=11)
    return done(figure)


def product_times(share: float, num_rows: int) -> tuple[float, float, float]:
    """Seconds of a product with a matrix of which `share` is zero: dense, dense with the zeros in it, and CSR."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(SHAPE, generator=generator)
    holed = weight * (torch.rand(SHAPE, generator=generator) >= share)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # its support is in beta
        sparse = holed.to_sparse_csr()
    x = torch.randn(num_rows, SHAPE[1], generator=generator)
    columns = x.T.contiguous()  # what a sparse product wants
    calls = (lambda: F.linear(x, weight), lambda: F.linear(x, holed), lambda: sparse @ columns)
    for call in calls:
        call()
    dense, with_zeros, csr = (seconds(call, repeats=40) for call in calls)
    return dense, with_zeros, csr


def sparse_over_dense() -> float:
    """The sparse product of one row with 90 % zeros, relative to the dense one."""
    dense, _, csr = product_times(0.9, 1)
    return csr / dense
