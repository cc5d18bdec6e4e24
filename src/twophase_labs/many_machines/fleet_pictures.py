"""A picture of fleets: what a router changes."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from twophase_labs.kit.draw import done
from twophase_labs.many_machines.fleets import Outcome
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
    label = "grey: half of the SLO;\nthe other half:\n30 ms per token"
    right.text(0.98, 0.06, label, fontsize=8, color=INK, ha="right", transform=right.transAxes)
    right.set(xlabel="TTFT in s", ylabel="percent of requests within", xlim=(0, None), ylim=(0, 100))
    right.legend(frameon=False, fontsize=8, loc="center right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return done(figure)
