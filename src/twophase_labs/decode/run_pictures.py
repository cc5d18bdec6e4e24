"""A run of the engine, from its own trace."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from twophase.core.outputs import StepTrace
from twophase_labs.machine.pictures import COLOURS, INK, LINE


def draw_timeline(trace: Sequence[StepTrace], names: Mapping[str, str]) -> Figure:
    """Who computed what when, a row per request; below, the blocks in use after each step.

    Args:
        trace: The steps to show.
        names: Request id -> what to call it, in the order of rows.
    """
    start_s = trace[0].start_s
    ends_s = [step.start_s - start_s + step.schedule_s + step.run_s + step.update_s for step in trace]
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(9, 1.6 + 0.45 * len(names) + 1.4), sharex=True, facecolor="white",
        height_ratios=(0.6 + 0.45 * len(names), 1.2),
    )  # fmt: skip
    rows = {request: row for row, request in enumerate(names)}
    for step, end_s in zip(trace, ends_s, strict=True):
        for at, (request, _, _, num_tokens) in enumerate(step.chunks):
            is_decode = at < step.num_decodes
            left = step.start_s - start_s
            top.barh(
                rows[request], end_s - left, 0.7, left=left, color=COLOURS[1 if is_decode else 0], alpha=0.8,
                edgecolor="white", hatch="" if is_decode else "//",
            )  # fmt: skip
            if not is_decode and end_s - left > 0.04 * ends_s[-1]:
                top.text((left + end_s) / 2, rows[request], f"{num_tokens} tokens", ha="center", va="center",
                         fontsize=8, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
        for request, _ in step.finished:
            top.plot(end_s, rows[request], "|", color=INK, markersize=16, markeredgewidth=2)
    top.set_yticks(range(len(names)), list(names.values()))
    top.set_ylim(len(names) - 0.5, -0.5)
    handles = [
        Patch(
            facecolor=COLOURS[0],
            alpha=0.8,
            hatch="//",
            edgecolor="white",
            label="prefill",
        ),
        Patch(facecolor=COLOURS[1], alpha=0.8, edgecolor="white", label="decode, one token a step"),
    ]
    top.legend(handles=handles, frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1.0), fontsize=9)
    top.set_title("The run, step by step", loc="left")

    times = [0.0] + [s for end in ends_s for s in (end, end)]
    levels = [0] + [
        n for i, step in enumerate(trace) for n in (trace[i - 1].blocks_in_use if i else 0, step.blocks_in_use)
    ]
    bottom.plot(times, levels, color=INK)
    bottom.fill_between(times, levels, color=LINE, alpha=0.25)
    bottom.set(
        xlabel="time since the first step (s)", ylabel="blocks in use", ylim=(0, None), xlim=(0, ends_s[-1] * 1.02)
    )
    bottom.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.close(figure)
    return figure
