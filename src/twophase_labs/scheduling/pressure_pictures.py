"""Pictures of a crowded pool."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase.core.colours import COLOURS, INK, LINE
from twophase_labs.scheduling.pressure import Pressure

BLUE, ORANGE, GREEN, _, _, VERMILION, _ = COLOURS


def draw_ways_back(lengths: Sequence[int], seconds: Mapping[str, Sequence[float]], title: str) -> Figure:
    """What bringing a sequence back costs for each of its tokens, by its length; the first way is to recompute."""
    figure, axes = plt.subplots(figsize=(8, 3.6), facecolor="white")
    for (name, times_s), (colour, style) in zip(
        seconds.items(), ((VERMILION, "o-"), (BLUE, "s--"), (GREEN, "^--")), strict=False
    ):
        axes.plot(
            lengths, [1e6 * s / n for s, n in zip(times_s, lengths, strict=True)], style, color=colour, label=name
        )
    axes.set(xscale="log", xlabel="tokens of the preempted sequence", ylabel="time per token (µs)", ylim=(0, None))
    axes.set_title(title, loc="left")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure


def draw_preemptions(runs: Mapping[str, Pressure]) -> Figure:
    """Preemptions counted up over simulated time, a line per run."""
    figure, axes = plt.subplots(figsize=(8, 3.4), facecolor="white")
    for (name, run), colour, style in zip(runs.items(), (VERMILION, BLUE, GREEN), ("-", "--", "-."), strict=False):
        times_s, counts, total = [0.0], [0], 0
        for step in run.steps:
            if step.preempted:
                total += len(step.preempted)
                times_s.append(step.start_s)
                counts.append(total)
        times_s.append(run.elapsed_s)
        counts.append(total)
        axes.step(times_s, counts, where="post", color=colour, linestyle=style, linewidth=2, label=name)
    axes.set(xlabel="time (s, simulated)", ylabel="preemptions so far", ylim=(0, None), xlim=(0, None))
    axes.set_title("Someone thrown out, again and again", loc="left")
    axes.legend(frameon=False)
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure


def draw_watermarks(watermarks: Sequence[float], runs: Sequence[Pressure]) -> Figure:
    """Work done twice, and the time until all is done, by the share of the pool that admission keeps free."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), facecolor="white")
    shares = [100 * watermark for watermark in watermarks]
    left.plot(shares, [run.times_needed for run in runs], "o-", color=VERMILION)
    left.axhline(1, color=LINE, linestyle=":")
    left.text(shares[-1], 1.01, "nothing twice", ha="right", va="bottom", color=INK)
    left.set(ylabel="tokens computed per token needed", ylim=(0.95, None))
    left.set_title("Work falls", loc="left")
    right.plot(shares, [run.elapsed_s for run in runs], "s-", color=BLUE)
    right.set(ylabel="all done after (s, simulated)")
    right.set_title("Time falls, then rises", loc="left")
    for axes in (left, right):
        axes.set_xlabel("watermark (% of the pool)")
        axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure
