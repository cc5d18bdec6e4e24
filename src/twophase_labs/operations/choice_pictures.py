"""Pictures of choices: a canary's intervals, accuracy against tokens, and where a request's time goes."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from twophase_labs.kit.draw import done, one_axes
from twophase_labs.operations.bottlenecks import PARTS, Service
from twophase_labs.operations.canary_gate import Line
from twophase_labs.operations.more_samples import Accuracy
from twophase_tools.colours import COLOURS, INK, LINE


def draw_looks(looks: Mapping[int, Sequence[Line]], names: Sequence[str]) -> Figure:
    """The interval of some lines at each look, a panel for each, with their bounds."""
    figure, panels = plt.subplots(1, len(names), figsize=(10, 3.2), facecolor="white", squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        found = [next(line for line in lines if line.name == name) for lines in looks.values()]
        at = np.arange(len(found))
        lows, highs = [100 * line.low for line in found], [100 * line.high for line in found]
        bound = 100 * found[0].bound
        axes.vlines(at, lows, highs, color=[_colour(line) for line in found], linewidth=6, alpha=0.85)
        axes.axhline(bound, color=INK, linestyle="--", linewidth=1)
        span = max(*highs, bound) - min(*lows, 0)
        axes.text(len(found) - 0.6, bound + 0.02 * span, "may be lost", ha="right", fontsize=8, color=INK)
        axes.axhline(0, color=LINE, linewidth=0.8)
        axes.set_xticks(at, [f"{number / 1000:g}" for number in looks], fontsize=8)
        axes.set_xlabel("thousands of requests, both sides")
        axes.set_title(name, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("answers lost, points\n(scales differ)")
    labels = (("surely kept", COLOURS[2]), ("open", COLOURS[4]), ("surely broken", COLOURS[5]))
    marks = [plt.Line2D([], [], color=colour, linewidth=6) for _, colour in labels]
    panels[0, -1].legend(marks, [label for label, _ in labels], frameon=False, fontsize=8, loc="upper right")
    return done(figure)


def _colour(line: Line) -> str:
    return COLOURS[5] if line.low > line.bound else COLOURS[2] if line.high <= line.bound else COLOURS[4]


def draw_accuracy(curves: Mapping[str, Sequence[Accuracy]], points: Sequence[Accuracy]) -> Figure:
    """Accuracy against tokens per task: a curve over k for each way to choose, and single answers as points."""
    figure, axes = one_axes(10, 4.4)
    for number, (name, found) in enumerate(curves.items()):
        colour, style = COLOURS[number % len(COLOURS)], ("-", "--", "-.", ":")[number % 4]
        axes.plot([a.tokens for a in found], [100 * a.rate for a in found], style, color=colour, marker="o",
                  markersize=4, linewidth=1.8, label=name)  # fmt: skip
    low, high = (100 * end for end in found[-1].interval)
    axes.vlines(found[-1].tokens, low, high, color=colour, linewidth=1, alpha=0.8)
    axes.text(found[-1].tokens * 1.03, low, "95 %\ninterval", fontsize=8, color=INK, va="bottom")
    for number, point in enumerate(points):
        axes.plot(point.tokens, 100 * point.rate, "sDsD"[number % 4], color=INK, markersize=6,
                  fillstyle="full" if number % 2 else "none")  # fmt: skip
        place, ha = ((6, -11), "left") if point.k == 4 else ((0, 7), "center")
        axes.annotate(point.name, (point.tokens, 100 * point.rate), xytext=place, textcoords="offset points",
                      ha=ha, fontsize=8, color=INK)  # fmt: skip
    axes.set_xscale("log", base=2)
    ticks = [4, 8, 16, 32, 64, 128, 256]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set(xlabel="tokens generated for each task", ylabel="right answers, percent", xlim=(2.8, 256), ylim=(0, 100))
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return done(figure)


def draw_parts(services: Sequence[Service]) -> Figure:
    """Shares of a request's time, a bar for each service."""
    figure, axes = one_axes(10, 0.9 + 0.5 * len(services))
    left = np.zeros(len(services))
    for part, colour, hatch in zip(PARTS, (COLOURS[4], COLOURS[1], COLOURS[0], COLOURS[2], COLOURS[5]),
                                   ("", "//", "", "..", "xx"), strict=True):  # fmt: skip
        shares = np.array([100 * s.parts[part] / sum(s.parts.values()) for s in services])
        axes.barh(
            [s.name for s in services], shares, left=left, color=colour, hatch=hatch, edgecolor="white", label=part
        )
        left += shares
    axes.invert_yaxis()
    axes.set(xlabel="percent of a request's time on the GPU, by roofline", xlim=(0, 100))
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PARTS))
    return done(figure)
