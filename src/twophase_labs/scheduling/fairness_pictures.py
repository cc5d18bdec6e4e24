"""Pictures of requests that wait for others."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase_labs.kit.draw import one_axes
from twophase_labs.scheduling.classes import RUSH_S, of_class, ttfts
from twophase_tools.colours import COLOURS, EMPTY, INK
from twophase_tools.load.records import RequestRecord

BLUE, ORANGE, GREEN, _, _, VERMILION, _ = COLOURS
STYLES = ((VERMILION, "o"), (BLUE, "s"), (GREEN, "^"), (ORANGE, "D"))


def draw_waits(runs: Mapping[str, Sequence[RequestRecord]]) -> Figure:
    """Time to first token: of the batch job's requests by their arrival, of the chats by percentile."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), facecolor="white")
    left.axvspan(0, RUSH_S, color=EMPTY, zorder=0)
    left.text(RUSH_S / 2, 1.01, "rush", transform=left.get_xaxis_transform(), color=INK, ha="center", va="bottom")
    for (label, records), (colour, marker), style in zip(runs.items(), STYLES, ("-", "--", "-."), strict=False):
        batch = of_class(records, "batch")
        x, y = [record.arrival_s for record in batch], [record.ttft_s or 0.0 for record in batch]
        left.plot(x, y, marker, color=colour, markersize=4, alpha=0.8, label=label)
        waits = sorted(ttfts(of_class(records, "person")))
        shares = [100 * number / (len(waits) - 1) for number in range(len(waits))]
        right.plot(shares, waits, style, color=colour, label=label)
    left.set(xlabel="arrival (s)", ylabel="time to first token (s)")
    left.set_title("The batch job", loc="left")
    right.set(xlabel="percentile of the chats", ylabel="time to first token (s)")
    right.set_title("Chats (y axis enlarged)", loc="left")
    inside = {"bbox_to_anchor": (RUSH_S, 0.99), "bbox_transform": left.get_xaxis_transform()}
    left.legend(frameon=False, loc="upper right", fontsize=9, **inside)
    right.legend(frameon=False, loc="upper left", fontsize=9)
    for panel in (left, right):
        panel.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure


def draw_convoy(runs: Mapping[str, Sequence[RequestRecord]]) -> Figure:
    """Time to first token of each question of the convoy, by arrival."""
    figure, axes = one_axes(9, 3.4, "Questions behind a document of 12,000 tokens")
    sizes = (9, 6, 9, 5)  # a smaller one stands on a larger one where runs agree
    for (label, (_, *questions)), (colour, marker), size in zip(runs.items(), STYLES, sizes, strict=False):
        x, y = [record.arrival_s for record in questions], [record.ttft_s or 0.0 for record in questions]
        axes.plot(x, y, marker, color=colour, markersize=size, fillstyle="none", markeredgewidth=1.4, label=label)
    axes.set(xlabel="arrival (s)", ylabel="time to first token (s)", ylim=(-0.2, None))
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    return figure
