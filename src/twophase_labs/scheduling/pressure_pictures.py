"""Pictures of a crowded pool."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase.core.colours import COLOURS

BLUE, _, GREEN, _, _, VERMILION, _ = COLOURS


def draw_ways_back(lengths: Sequence[int], seconds: Mapping[str, Sequence[float]], title: str) -> Figure:
    """What bringing a sequence back costs for each of its tokens, by its length; the first way is to recompute."""
    figure, axes = plt.subplots(figsize=(8, 3.6), facecolor="white")
    for (name, times_s), (colour, style) in zip(
        seconds.items(), ((VERMILION, "o-"), (BLUE, "s--"), (GREEN, "^--")), strict=False
    ):
        axes.plot(
            lengths, [1e6 * s / n for s, n in zip(times_s, lengths, strict=True)], style, color=colour, label=name
        )
    axes.set(xscale="log", xlabel="tokens of the preempted sequence", ylabel="time per token (µs)", ylim=(0, None))
    axes.set_title(title, loc="left")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure
