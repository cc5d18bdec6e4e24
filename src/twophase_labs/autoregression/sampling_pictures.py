"""Pictures of distributions over tokens."""

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from twophase_labs.kit.draw import one_axes
from twophase_labs.machine.pictures import COLOURS, INK, LINE


def draw_distributions(
    before: Float[Tensor, "V"],
    panels: Mapping[str, Float[Tensor, "V"]],
    num_shown: int,
    decode: Callable[[list[int]], str],
) -> Figure:
    """A panel per processor: probabilities of the likeliest tokens after it, and in outline those before it."""
    order = before.argsort(descending=True)[:num_shown]
    words = [decode([token]).strip() or "(space)" for token in order.tolist()]
    figure, all_axes = plt.subplots(1, len(panels), figsize=(10, 0.9 + 0.27 * num_shown), sharey=True, sharex=True)
    figure.set_facecolor("white")
    rows = np.arange(num_shown)
    for axes, (title, probs) in zip(all_axes, panels.items(), strict=True):
        axes.barh(rows, probs[order].numpy(), 0.72, color=COLOURS[1], label="after")
        axes.barh(rows, before[order].numpy(), 0.72, fill=False, edgecolor=INK, linewidth=0.9, label="before")
        num_left = int((probs > 0).sum())
        axes.set_title(f"{title}\n{num_left:,} token{'s' * (num_left != 1)} left", loc="left", fontsize=10)
        axes.set_yticks(rows, words)
        axes.set_xlabel("probability")
        axes.spines[["right", "top"]].set_visible(False)
    all_axes[0].invert_yaxis()
    all_axes[0].set_ylabel("token, the likeliest first")
    all_axes[-1].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    return figure


def draw_residuals(counts: Int[Tensor, "V"], probs: Float[Tensor, "V"]) -> Figure:
    """By how many standard deviations the times each token was drawn differ from probability times draws."""
    num_draws = int(counts.sum())
    p = probs.double().numpy()
    order = np.argsort(-p)
    residuals = ((counts.numpy() - num_draws * p) / np.sqrt(num_draws * p * (1 - p)))[order]
    at = np.arange(len(order))
    figure, axes = one_axes(8, 3, f"{num_draws:,} draws against their probabilities")
    axes.axhspan(-2, 2, color=LINE, alpha=0.25, label="two standard deviations")
    axes.axhline(0, color=LINE, linewidth=0.8)
    axes.vlines(at, 0, residuals, color=COLOURS[0])
    axes.plot(at, residuals, "o", color=COLOURS[0], markersize=6, label="drawn minus expected")
    axes.set(xlabel="token, the likeliest first", ylabel="standard deviations", xticks=at, ylim=(-4.5, 4.5))
    axes.legend(frameon=False, ncols=2, loc="upper right")
    figure.tight_layout()
    return figure
