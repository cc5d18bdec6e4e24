"""Pictures of a crowded pool."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from twophase_tools.colours import COLOURS, INK

BLUE, _, GREEN, _, _, VERMILION, _ = COLOURS


def hatch_preempted(figure: Figure) -> Figure:
    """Swim lanes in which what is preempted is told from a prefill without its colour."""
    for axes in figure.axes:
        legend = axes.get_legend()
        boxes = [one for one in axes.collections if isinstance(one, PatchCollection) and len(one.get_facecolor())]
        for collection in boxes:
            if same_color(tuple(np.asarray(collection.get_facecolor())[0]), VERMILION):
                collection.set(hatch="xxxx", facecolor="white", edgecolor=INK)
        for patch in legend.get_patches() if legend else ():
            if isinstance(patch, Patch) and same_color(patch.get_facecolor(), VERMILION):
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
