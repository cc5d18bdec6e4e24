"""A run of the engine, from its own trace."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from twophase.core.outputs import StepTrace
from twophase_labs.machine.pictures import COLOURS, INK, LINE

PREFILL_STYLE: dict[str, Any] = {"facecolor": COLOURS[0], "alpha": 0.8, "edgecolor": "white", "hatch": "//"}


def _decode_style(num_sequences: int) -> dict[str, Any]:
    if num_sequences > 1:
        return {"facecolor": COLOURS[5], "alpha": 0.85, "edgecolor": "white", "hatch": ".."}
    return {"facecolor": COLOURS[1], "alpha": 0.8, "edgecolor": "white"}


def draw_timeline(trace: Sequence[StepTrace], names: Mapping[str, str]) -> Figure:
    """Who computed what when, a row per request; below, the blocks in use after each step.

    Two completions of one request decode in one row: that is drawn darker.

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
    most_at_once = 1
    for step, end_s in zip(trace, ends_s, strict=True):
        decoding = Counter(request for request, *_ in step.chunks[: step.num_decodes])
        most_at_once = max(most_at_once, *decoding.values(), 0)
        left = step.start_s - start_s
        for request, number in decoding.items():
            top.barh(rows[request], end_s - left, 0.7, left=left, **_decode_style(number))
        for request, _, _, num_tokens in step.chunks[step.num_decodes :]:
            top.barh(rows[request], end_s - left, 0.7, left=left, **PREFILL_STYLE)
            if end_s - left > 0.04 * ends_s[-1]:
                top.text((left + end_s) / 2, rows[request], f"{num_tokens} tokens", ha="center", va="center",
                         fontsize=8, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
        for request, _ in step.finished:
            top.plot(end_s, rows[request], "|", color=INK, markersize=16, markeredgewidth=2)
    top.set_yticks(range(len(names)), list(names.values()))
    top.set_ylim(len(names) - 0.5, -0.5)
    handles = [
        Patch(**PREFILL_STYLE, label="prefill"),
        Patch(**_decode_style(1), label="decode, one token a step"),
    ]
    if most_at_once > 1:
        handles.append(Patch(**_decode_style(2), label="of two completions"))
    top.legend(handles=handles, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1.0), fontsize=9)
    top.set_title("The run, step by step", loc="left")

    times = [0.0] + [s for end in ends_s for s in (end, end)]
    levels = [0] + [
        n for i, step in enumerate(trace) for n in (trace[i - 1].blocks_in_use if i else 0, step.blocks_in_use)
    ]
    bottom.plot(times, levels, color=INK)
    bottom.fill_between(times, levels, color=LINE, alpha=0.25)
    bottom.set(
        xlabel="time since the first step (s)",
        ylabel="blocks in use\nafter the step",
        ylim=(0, None),
        xlim=(0, ends_s[-1] * 1.02),
    )
    bottom.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.close(figure)
    return figure
