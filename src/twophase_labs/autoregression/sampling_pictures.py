"""Pictures of distributions over tokens."""

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from twophase_labs.machine.pictures import COLOURS, INK, LINE


def draw_distributions(
    panels: Mapping[str, Float[Tensor, "V"]], num_shown: int, decode: Callable[[list[int]], str]
) -> Figure:
    """One panel per distribution: its probabilities over the tokens that rank first in the first panel."""
    order = next(iter(panels.values())).argsort(descending=True)[:num_shown]
    words = [decode([token]).strip() or "(space)" for token in order.tolist()]
    figure, all_axes = plt.subplots(1, len(panels), figsize=(10, 3.2), sharey=True, facecolor="white")
    for index, (axes, (title, probs)) in enumerate(zip(all_axes, panels.items(), strict=True)):
        shown = probs[order].tolist()
        axes.bar(range(num_shown), shown, color=COLOURS[0] if index == 0 else COLOURS[1], edgecolor=INK, linewidth=0.4)
        num_left = int((probs > 0).sum())
        axes.set_title(f"{title}\n{num_left:,} token{'s' * (num_left != 1)} left", loc="left", fontsize=9)
        axes.set_xticks(range(num_shown), words, rotation=90, fontsize=7)
        axes.spines[["right", "top"]].set_visible(False)
    all_axes[0].set_ylabel("probability")
    figure.supxlabel(f"the {num_shown} likeliest tokens", fontsize=9)
    figure.tight_layout()
    return figure


def draw_counts(counts: Int[Tensor, "V"], probs: Float[Tensor, "V"]) -> Figure:
    """How often each token was drawn, over how often it should be, with the band that chance allows."""
    num_draws = int(counts.sum())
    expected = (probs.double() * num_draws).numpy()
    spread = 2 * np.sqrt(expected * (1 - probs.double().numpy()))
    order = np.argsort(-expected)
    at = np.arange(len(order))
    figure, axes = plt.subplots(figsize=(8, 3), facecolor="white")
    axes.bar(at, expected[order], color="white", edgecolor=LINE, label="probability times draws")
    axes.errorbar(
        at, expected[order], spread[order], fmt="none", ecolor=LINE, capsize=3, label="two standard deviations"
    )
    axes.plot(at, counts.numpy()[order], "o", color=COLOURS[0], markersize=5, label="drawn")
    axes.set(xlabel="token, the likeliest first", ylabel=f"times in {num_draws:,} draws", xticks=at)
    axes.spines[["right", "top"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    return figure
