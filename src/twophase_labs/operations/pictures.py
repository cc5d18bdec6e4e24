"""Pictures of sections 1 to 3: what a stream looks like, where a first token's time goes, buckets, alerts."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from twophase_labs.kit.draw import done, one_axes
from twophase_labs.operations.burst import VALUES, Burst, Told
from twophase_labs.operations.six_terms import TERMS, Timed
from twophase_tools.colours import COLOURS, INK, LINE

TERM_COLOURS = dict(zip(TERMS, (COLOURS[0], COLOURS[5], COLOURS[3], COLOURS[1], COLOURS[2], COLOURS[4]), strict=True))
HATCHES = dict(zip(TERMS, ("", "//", "..", "", "xx", "\\\\"), strict=True))


def draw_cuts(events: Sequence[bytes], cuts: Sequence[int]) -> Figure:
    """Bytes of a stream, coloured by event; lines where the network cut them. What is no ASCII is shown as hex."""
    figure, axes = plt.subplots(figsize=(10, 1.7), facecolor="white")
    at = 0
    for number, event in enumerate(events):
        for byte in event:
            shown = "\\n" if byte == 10 else chr(byte) if byte < 128 else f"{byte:02X}"
            colour = COLOURS[1] if number % 2 else COLOURS[4]
            axes.add_patch(Rectangle((at, 0), 1, 1, facecolor=colour, edgecolor="white", alpha=0.55))
            axes.text(at + 0.5, 0.5, shown, ha="center", va="center", fontsize=9, family="monospace", color=INK)
            at += 1
    for number, (left, right) in enumerate(zip((0, *cuts), (*cuts, at), strict=True)):
        axes.plot([left + 0.1, right - 0.1], [-0.35, -0.35], color=INK, linewidth=1.5)
        axes.text((left + right) / 2, -0.5, f"chunk {number}", ha="center", va="top", fontsize=9, color=INK)
    for cut in cuts:
        axes.axvline(cut, color=INK, linewidth=1.5)
    axes.set_title("A byte in each box, a colour for each event; lines: where they were cut", loc="left", fontsize=10)
    axes.set(xlim=(-0.5, at + 0.5), ylim=(-1.1, 1.2), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return done(figure)


def draw_terms(timed: Sequence[Timed]) -> Figure:
    """A bar for each request, from the client's send to its first text."""
    figure, axes = one_axes(9, 0.55 * len(timed) + 1.6, "A late first token has different reasons")
    for row, one in enumerate(timed):
        left = 0.0
        for term in TERMS:
            width = 1e3 * one.terms[term]
            axes.barh(row, width, 0.62, left, color=TERM_COLOURS[term], hatch=HATCHES[term], edgecolor=INK,
                      linewidth=0.5, label=term if not row else None)  # fmt: skip
            left += width
        axes.text(left, row, f"  {left:,.0f} ms", va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(timed)), [one.answer.ask.name for one in timed])
    axes.invert_yaxis()
    axes.set(xlabel="ms until the client reads its first text", xlim=(0, 1.15e3 * max(one.ttft_s for one in timed)))
    figure.legend(frameon=False, loc="upper center", ncols=len(TERMS), fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    plt.close(figure)
    return figure


def draw_buckets(
    values: Sequence[float], buckets: Sequence[tuple[float, float]], histogram_quantile: Callable[..., float]
) -> Figure:
    """Shares of the values: the values themselves, and what their buckets say; the median and the 90th percentile."""
    figure, axes = one_axes(8.4, 3.6, "A bucket does not tell where in it its values lie")
    ordered = np.sort(np.asarray(values))
    total = buckets[-1][1]
    bounds = [(bound, count) for bound, count in buckets if not math.isinf(bound)]
    last = next(number for number, (_, count) in enumerate(bounds) if count == total)
    shown = [(0.0, 0.0), *bounds[: last + 1]]
    axes.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=INK, label="every value")
    axes.plot([bound for bound, _ in shown], [count / total for _, count in shown], "o-", color=COLOURS[1],
              label="the buckets, values spread evenly")  # fmt: skip
    for q, style in ((0.5, ":"), (0.9, "--")):
        guessed, exact = histogram_quantile(q, list(buckets)), float(np.quantile(ordered, q, method="inverted_cdf"))
        axes.axhline(q, color=LINE, linewidth=1, linestyle=style)
        axes.plot([guessed, exact], [q, q], style, color=COLOURS[5], linewidth=2)
        axes.annotate(f"{q:.0%}: estimated {1e3 * guessed:.0f} ms, true {1e3 * exact:.0f} ms", (max(guessed, exact), q),
                      (8, -12), textcoords="offset points", fontsize=9, color=INK)  # fmt: skip
    axes.set(xlabel="time to first token, s", ylabel="share of the requests", ylim=(0, 1.05))
    axes.set_xlim(0, 1.2 * max(float(ordered[-1]), shown[-1][0]))
    axes.legend(frameon=False, loc="lower right")
    return done(figure)


def draw_alerts(seen: Burst, told: Sequence[Told], thresholds: Sequence[float]) -> Figure:
    """A panel for each alert: its value, its threshold, and when it was pending or fired."""
    figure, panels = plt.subplots(len(told), 1, figsize=(9, 1.35 * len(told) + 0.8), facecolor="white", sharex=True)
    for axes, one, threshold in zip(np.atleast_1d(panels), told, thresholds, strict=True):
        times, values = zip(*seen.series(VALUES[one.name]), strict=True)
        axes.step(times, values, where="post", color=INK, linewidth=1.2, marker=".", markersize=3)
        axes.axhline(threshold, color=LINE, linewidth=1, linestyle="--")
        top = 1.2 * max(*values, threshold, 0.1)
        for (left, state), right in zip(one.states, [*times[1:], times[-1]], strict=True):
            if state != "inactive":
                colour, hatch = (COLOURS[5], "") if state == "firing" else (COLOURS[3], "///")
                axes.add_patch(Rectangle((left, 0), right - left, top, facecolor=colour, hatch=hatch, alpha=0.3,
                                         linewidth=0))  # fmt: skip
        late_s = seen.first_late_s
        if late_s is not None:
            axes.axvline(late_s, color=INK, linestyle=":")
        axes.set(ylim=(0, top))
        axes.set_title(one.name, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(panels)[-1].set_xlabel("s after the first request; a dot is a look; dotted: the first client is late")
    kinds = [Rectangle((0, 0), 1, 1, facecolor=COLOURS[3], hatch="///", alpha=0.3, label="pending"),
             Rectangle((0, 0), 1, 1, facecolor=COLOURS[5], alpha=0.3, label="firing")]  # fmt: skip
    top_right: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
    np.atleast_1d(panels)[0].legend(handles=kinds, frameon=False, fontsize=9, ncols=2, **top_right)
    return done(figure)
