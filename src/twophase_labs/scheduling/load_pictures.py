"""Goodput and throughput against the load."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase.core.colours import COLOURS, LINE

BLUE, ORANGE, GREEN, *_ = COLOURS


def draw_goodput(offered: Sequence[float], completed: Sequence[float], good: Sequence[float]) -> Figure:
    """Requests per second, by the load: those that came, those that ended, and those that ended within the SLO."""
    figure, axes = plt.subplots(figsize=(7.5, 3.6), facecolor="white")
    axes.plot(offered, offered, ":", color=LINE)
    axes.plot(offered, completed, "s--", color=ORANGE)
    axes.plot(offered, good, "o-", color=GREEN)
    labels = ((offered, "came", "0.4"), (completed, "throughput", ORANGE), (good, "goodput", GREEN))
    for values, text, colour in labels:
        axes.annotate(text, (offered[-1], values[-1]), (6, 0), textcoords="offset points", va="center", color=colour)
    axes.set(xlabel="requests per second that came", ylabel="requests per second", ylim=(0, None))
    axes.margins(x=0.14)
    axes.set_title("Goodput against load", loc="left")
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure
