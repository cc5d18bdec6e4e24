"""Pictures of fleets: what a router changes, and how a fleet follows its load."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from twophase_labs.kit.draw import done
from twophase_labs.many_machines.fleets import Outcome, Scaled
from twophase_tools.colours import COLOURS, INK, LINE


def draw_fleets(outcomes: Sequence[Outcome]) -> Figure:
    """Hit rate and share within the SLO, and TTFT by percentile."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), facecolor="white")
    at = np.arange(len(outcomes))
    shares = (("hit rate", [each.hit_rate for each in outcomes], COLOURS[4], ""),
              ("within the SLO", [each.within for each in outcomes], COLOURS[1], "//"))  # fmt: skip
    for number, (label, values, colour, hatch) in enumerate(shares):
        bars = left.bar(at + 0.38 * (number - 0.5), [100 * value for value in values], 0.36, color=colour, hatch=hatch,
                        edgecolor=INK, label=label)  # fmt: skip
        left.bar_label(bars, fmt="%.0f", fontsize=8, color=INK)
    left.set_xticks(at, [each.name.replace(", ", ",\n") for each in outcomes], fontsize=8)
    left.set(ylabel="percent", ylim=(0, 118))
    left.set_title("Same engines, same requests", loc="left", fontsize=10)
    left.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    percents = range(1, 100)
    for number, each in enumerate(outcomes):
        style, colour = ("-", "--", ":")[number % 3], (COLOURS[5], COLOURS[0], INK)[number % 3]
        right.plot([each.ttft_s(p) for p in percents], percents, style, color=colour, linewidth=1.8, label=each.name)
    right.axvline(0.5, color=LINE, linewidth=1)
    right.text(0.515, 6, "half of the SLO;\nthe other half:\n30 ms per token", fontsize=8, color=INK)
    right.set(xlabel="TTFT in s", ylabel="percent of requests within", xlim=(0, None), ylim=(0, 100))
    right.legend(frameon=False, fontsize=8, loc="center right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return done(figure)


def draw_scaling(runs: Sequence[Scaled]) -> Figure:
    """Traffic and engines over time, those that take requests and those that are paid for; and the longest wait."""
    figure, panels = plt.subplots(2, len(runs), figsize=(10, 4.4), facecolor="white", sharex=True, sharey="row",
                                  squeeze=False, height_ratios=(2, 1))  # fmt: skip
    for column, run in enumerate(runs):
        upper, lower = panels[0, column], panels[1, column]
        upper.step(run.times_s, run.paid, where="post", color=COLOURS[1], linewidth=1.8, label="paid for")
        upper.step(run.times_s, run.ready, where="post", color=COLOURS[0], linestyle="--", linewidth=1.5,
                   label="take requests")  # fmt: skip
        upper.step(run.times_s, run.rate_per_s, where="post", color=INK, linestyle=":", linewidth=1.5,
                   label="traffic: requests per s")  # fmt: skip
        upper.set_title(run.name, loc="left", fontsize=10)
        lower.fill_between(run.times_s, run.queue_age_s, step="post", color=COLOURS[5], alpha=0.6)
        lower.set_xlabel("time in s")
        for axes in (upper, lower):
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_ylim(0, None)
    panels[0, 0].set_ylabel("engines (or requests per s)")
    panels[1, 0].set_ylabel("longest wait\nin a queue, s")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="upper center", ncols=3)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    plt.close(figure)
    return figure
