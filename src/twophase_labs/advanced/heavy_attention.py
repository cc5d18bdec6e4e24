"""Attention weights of SmolLM2 over a text, and how much of the attention to come a cache of few keys would get."""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from twophase_labs.advanced import window_engine
from twophase_labs.kit.draw import one_axes
from twophase_tools.colours import COLOURS, INK

LAYERS = (2, 9, 16, 23)
Keep = Callable[[Float[Tensor, "T T"]], Sequence[int]]


def attention_weights(num_tokens: int, layers: Sequence[int] = LAYERS) -> Float[Tensor, "L H T T"]:
    """Of each query to each key, in these layers, for the beginning of the text."""
    return window_engine.attention_weights(num_tokens)[list(layers)]


def heavy_hitters(weights: Float[Tensor, "T T"], budget: int, num_recent: int) -> list[int]:
    """The positions that a cache of `budget` slots of one head holds after the last token."""
    scores, held = [0.0] * len(weights), list[int]()
    for query, row in enumerate(weights.tolist()):
        held.append(query)
        for key in held:
            scores[key] += row[key]
        if len(held) > budget:
            may_go = held[: len(held) - num_recent]
            held.remove(min(may_go, key=lambda key: scores[key]))
    return held


def shares_kept(weights: Float[Tensor, "L H T T"], num_read: int, keep: Keep) -> Float[Tensor, "L H"]:
    """Of the attention that the queries from `num_read` on give to earlier keys, the share of those that are kept.

    Args:
        keep: From a head's weights over what was read, the positions that it keeps.
    """
    shares = torch.zeros(weights.shape[:2])
    for layer, heads in enumerate(weights):
        for head, each in enumerate(heads):
            kept = list(keep(each[:num_read, :num_read]))
            to_past = each[num_read:, :num_read]
            shares[layer, head] = to_past[:, kept].sum() / to_past.sum()
    return shares


def draw_shares(shares: Mapping[str, Float[Tensor, "L H"]], layers: Sequence[int] = LAYERS) -> Figure:
    """A group of bars per layer, a bar per way of keeping: the mean over heads; dots are single heads."""
    figure, axes = one_axes(8.5, 3.6, "Which keys get the attention to come? (dots: heads)")
    width = 0.8 / len(shares)
    hatches = ("", "//", "--")
    for number, ((name, values), colour) in enumerate(zip(shares.items(), COLOURS, strict=False)):
        places = [at + (number - (len(shares) - 1) / 2) * width for at in range(len(layers))]
        means = 100 * values.mean(1)
        axes.bar(places, means, 0.92 * width, color=colour, edgecolor=INK, linewidth=0.5, label=name,
                 hatch=hatches[number % 3])  # fmt: skip
        for place, heads in zip(places, values, strict=True):
            axes.plot([place] * len(heads), 100 * heads, "o", color="white", markeredgecolor=INK, markersize=4)
    axes.set(xticks=range(len(layers)), ylabel="attention to kept keys (%)", ylim=(0, 105))
    axes.set_xticklabels([f"layer {layer}" for layer in layers])
    axes.legend(frameon=False, fontsize=9, ncols=len(shares), loc="upper center", bbox_to_anchor=(0.5, -0.12))
    figure.tight_layout()
    return figure
