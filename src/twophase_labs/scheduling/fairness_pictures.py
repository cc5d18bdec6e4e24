"""Pictures of requests that wait for others."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase.core.colours import COLOURS, EMPTY, INK
from twophase_labs.scheduling.classes import RUSH_S, of_class
from twophase_tools.load.records import RequestRecord

BLUE, ORANGE, GREEN, _, _, VERMILION, _ = COLOURS
STYLES = ((VERMILION, "o"), (BLUE, "s"), (GREEN, "^"), (ORANGE, "D"))


def draw_waits(runs: Mapping[str, Sequence[RequestRecord]]) -> Figure:
    """Time to first token against arrival: the batch job's requests, and the others'."""
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.8), facecolor="white", sharey=True)
    for panel, name, title in zip(axes, ("batch", "person"), ("The batch job", "Chats"), strict=True):
        panel.axvspan(0, RUSH_S, color=EMPTY, zorder=0)
        panel.text(RUSH_S / 2, 0.97, "rush", transform=panel.get_xaxis_transform(), ha="center", va="top", color=INK)
        for (label, records), (colour, marker) in zip(runs.items(), STYLES, strict=False):
            mine = of_class(records, name)
            x, y = [record.arrival_s for record in mine], [record.ttft_s for record in mine]
            panel.plot(x, y, marker, color=colour, markersize=4, alpha=0.8, label=label)
        panel.set(xlabel="arrival (s)")
        panel.set_title(title, loc="left")
        panel.spines[["right", "top"]].set_visible(False)
    axes[0].set_ylabel("time to first token (s)")
    axes[0].legend(frameon=False, loc="upper right")
    figure.tight_layout()
    return figure


def draw_convoy(runs: Mapping[str, Sequence[RequestRecord]]) -> Figure:
    """Time to first token of each question of the convoy, by arrival."""
    figure, axes = plt.subplots(figsize=(9, 3.4), facecolor="white")
    for (label, (_, *questions)), (colour, marker) in zip(runs.items(), STYLES, strict=False):
        x, y = [record.arrival_s for record in questions], [record.ttft_s or 0.0 for record in questions]
        axes.plot(x, y, marker, color=colour, markersize=5, alpha=0.8, label=label)
    axes.set(xlabel="arrival (s)", ylabel="time to first token (s)", ylim=(-0.2, None))
    axes.set_title("Questions behind a document of 12,000 tokens", loc="left")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure
