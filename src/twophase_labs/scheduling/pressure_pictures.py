"""Pictures of a crowded pool."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from twophase.core.colours import COLOURS, INK

BLUE, _, GREEN, _, _, VERMILION, _ = COLOURS


def hatch_preempted(figure: Figure) -> Figure:
    """Swim lanes in which what is preempted is told from a prefill without its colour."""
    for axes in figure.axes:
        legend = axes.get_legend()
        for collection in axes.collections:
            is_boxes = isinstance(collection, PatchCollection)
            colours = np.atleast_2d(np.asarray(collection.get_facecolor(), dtype=float))
            if is_boxes and colours.size and np.allclose(colours[0], to_rgba(VERMILION)):
                collection.set(hatch="xxxx", facecolor="white", edgecolor=INK)
        for patch in legend.get_patches() if legend else ():
            if isinstance(patch, Patch) and np.allclose(to_rgba(patch.get_facecolor()), to_rgba(VERMILION)):
                patch.set(hatch="xxxx", facecolor="white", edgecolor=INK)
    return figure


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
