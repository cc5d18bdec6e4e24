"""Pictures of batch slots, queues and budgets."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from twophase_labs.kit.draw import done
from twophase_labs.scheduling.teaching import Log
from twophase_tools.colours import COLOURS, DECODE, EMPTY, INK, LINE

Spans = Sequence[tuple[int, int]]
VERMILION = COLOURS[5]
REQUESTS = (COLOURS[2], COLOURS[3], COLOURS[6])


def slots_of(spans: Spans) -> list[int]:
    """Which batch slot each request has: the lowest that is free when it starts."""
    free_from: list[int] = []
    slots = [0] * len(spans)
    for request, (first, end) in sorted(enumerate(spans), key=lambda item: (item[1][0], item[0])):
        slot = next((slot for slot, free in enumerate(free_from) if free <= first), len(free_from))
        free_from[slot : slot + 1] = [end]
        slots[request] = slot
    return slots


def draw_slots(runs: Mapping[str, Spans], max_num_seqs: int) -> Figure:
    """A row per batch slot, a box per request from its first to its last step; what is left grey gave no token."""
    figure, panels = plt.subplots(
        len(runs), 1, figsize=(10, 0.9 + len(runs) * (0.7 + 0.3 * max_num_seqs)), sharex=True, squeeze=False,
        facecolor="white",
    )  # fmt: skip
    for axes, (name, spans) in zip(panels[:, 0], runs.items(), strict=True):
        start, end = min(first for first, _ in spans), max(end for _, end in spans)
        axes.barh(range(max_num_seqs), end - start, 0.8, left=start, color=EMPTY, edgecolor=LINE, linewidth=0.5)
        for request, (slot, (first, last)) in enumerate(zip(slots_of(spans), spans, strict=True)):
            axes.barh(slot, last - first, 0.8, left=first, color=DECODE, edgecolor="white")
            axes.text((first + last) / 2, slot, str(request), ha="center", va="center", fontsize=8, color=INK)
        axes.set(ylim=(max_num_seqs - 0.4, -0.6), yticks=range(max_num_seqs), ylabel="batch slot")
        axes.set_title(name, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].legend(
        handles=[
            Patch(facecolor=DECODE, label="a request: a token in each step"),
            Patch(facecolor=EMPTY, edgecolor=LINE, label="no token"),
        ],
        frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1), fontsize=8,
    )  # fmt: skip
    panels[-1, 0].set_xlabel("step")
    return done(figure)


def draw_steps(logs: Mapping[str, Log], budget: int) -> Figure:
    """What each step computes, stacked by request, under the budget."""
    figure, panels = plt.subplots(
        1, len(logs), figsize=(10, 3.2), sharey=True, squeeze=False, facecolor="white"
    )  # fmt: skip
    names = list(dict.fromkeys(name for log in logs.values() for step in log for name, _ in step))
    for axes, (title, log) in zip(panels[0], logs.items(), strict=True):
        _stack(axes, log, names)
        axes.axhline(budget, color=VERMILION, linestyle="--", linewidth=1)
        axes.text(
            0.01, budget, f"budget {budget}", transform=axes.get_yaxis_transform(), color=VERMILION, fontsize=8,
            ha="left", va="bottom",
        )  # fmt: skip
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if not any(log):
            axes.text((len(log) - 1) / 2, budget / 2, "nothing, step after step", ha="center", color=INK)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(xlabel="step", xlim=(-0.6, max(len(log), 2) - 0.4), ylim=(0, 1.2 * budget))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("tokens computed")
    panels[0, -1].legend(frameon=False, fontsize=8, ncols=len(names) + 1, loc="upper right")
    return done(figure)


def _stack(axes: Axes, log: Log, names: Sequence[str]) -> None:
    below = [0] * len(log)
    for number, name in enumerate(names):
        tokens = [sum(n for who, n in step if who == name) for step in log]
        axes.bar(
            range(len(log)), tokens, bottom=below, color=REQUESTS[number % len(REQUESTS)], edgecolor="white",
            alpha=0.85, label=name, hatch=("", "//", "..", "xx")[number % 4],
        )  # fmt: skip
        below = [a + b for a, b in zip(below, tokens, strict=True)]
