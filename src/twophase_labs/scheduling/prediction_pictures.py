"""Pictures of predictions."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from twophase_tools.colours import DECODE, INK, PREFILL

PHASES = ((False, PREFILL, "s", "with prefill"), (True, DECODE, "o", "decodes only"))
TICKS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def draw_step_times(steps: Sequence[tuple[float, float, bool]]) -> Figure:
    """A dot per step of a run: measured across, predicted up."""
    figure, axes = plt.subplots(figsize=(5.2, 4.4), facecolor="white")
    for is_decode, colour, marker, label in PHASES:
        mine = [(1e3 * x, 1e3 * y) for x, y, flag in steps if flag == is_decode]
        if mine:
            axes.plot(*zip(*mine, strict=True), marker, color=colour, markersize=5, alpha=0.7, label=label)
    low = 0.8e3 * min(min(x, y) for x, y, _ in steps)
    high = 1.25e3 * max(max(x, y) for x, y, _ in steps)
    axes.plot([low, high], [low, high], color=INK, linewidth=1)
    axes.text(0.97, 0.04, "on the line: as predicted", transform=axes.transAxes, ha="right", color=INK, fontsize=9)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([one for one in TICKS_MS if low <= one <= high]))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_locator(NullLocator())
    axes.set(xlabel="measured step time (ms)", ylabel="predicted step time (ms)")
    axes.set_title("Steps of a run the fit has not seen", loc="left")
    axes.legend(frameon=False, loc="upper left")
    axes.grid(alpha=0.3)
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure
