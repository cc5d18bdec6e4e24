"""Goodput and throughput against the load."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from twophase_labs.kit.draw import one_axes
from twophase_tools.colours import COLOURS, LINE

BLUE, ORANGE, GREEN, *_ = COLOURS


def draw_goodput(
    offered: Sequence[float], completed: Sequence[float], good: Sequence[float], labels: Sequence[str] = ()
) -> Figure:
    """Requests per second, by the load: those that arrive, those that end, and those that end within the SLO.

    Args:
        labels: Of the goodput's points, such as the load in per cent of the capacity.
    """
    figure, axes = one_axes(7.5, 3.6, "Goodput against load")
    axes.plot(offered, offered, ":", color=LINE)
    axes.plot(offered, completed, "s--", color=ORANGE)
    axes.plot(offered, good, "o-", color=GREEN)
    lines = ((offered, "arriving", "0.4"), (completed, "throughput", ORANGE), (good, "goodput", GREEN))
    for values, text, colour in lines:
        axes.annotate(text, (offered[-1], values[-1]), (6, 0), textcoords="offset points", va="center", color=colour)
    for x, y, text in zip(offered, good, labels, strict=False):
        axes.annotate(text, (x, y), (2, -17), textcoords="offset points", ha="right", color=GREEN, fontsize=9)
    axes.set(xlabel="requests arriving per second", ylabel="requests per second", ylim=(0, None))
    axes.margins(x=0.14)
    figure.tight_layout()
    return figure
