"""The challenge's two SLOs, request by request."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from twophase_tools.colours import COLOURS, INK
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.slo import Slo

STYLES = ((COLOURS[1], "--"), (COLOURS[0], "-"), (COLOURS[2], "-."))


def draw_latencies(runs: Mapping[str, Sequence[RequestRecord]], slo: Slo) -> Figure:
    """The TTFT and the TPOT of every request, sorted, beside what the SLO allows: what is below the line is in time."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), facecolor="white")
    for axes, name, limit_s in zip(panels, ("ttft_s", "tpot_s"), (slo.ttft_s, slo.tpot_s), strict=True):
        for (label, records), (colour, style) in zip(runs.items(), STYLES, strict=False):
            values = sorted(value for record in records if (value := getattr(record, name)) is not None)
            shares = [100 * (number + 1) / len(values) for number in range(len(values))]
            axes.plot(shares, values, style, color=colour, linewidth=1.8, label=label)
        if limit_s is not None:
            axes.axhline(limit_s, color=INK, linewidth=1, linestyle=":")
            axes.annotate(
                f"SLO: {limit_s:g} s", (0, limit_s), (3, 4), textcoords="offset points", color=INK, fontsize=9
            )
        axes.set(xlabel="share of the requests (%)", ylim=(0, None), xlim=(0, 100))
        axes.spines[["right", "top"]].set_visible(False)
    panels[0].set(ylabel="time to first token (s)", yscale="log", ylim=(0.01, None))
    panels[0].yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panels[0].set_title("TTFT, sorted", loc="left")
    panels[1].set(ylabel="time per output token (s)")
    panels[1].set_title("TPOT, sorted", loc="left")
    panels[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    return figure
