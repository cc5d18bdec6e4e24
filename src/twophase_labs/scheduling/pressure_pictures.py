"""Pictures of a crowded pool."""

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from twophase_tools.colours import COLOURS, INK

VERMILION = COLOURS[5]


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
