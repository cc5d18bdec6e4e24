"""A run of the engine, from its own trace."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from twophase.core.plan import StepTrace
from twophase_labs.kit.draw import done
from twophase_labs.machine.pictures import COLOURS, INK, LINE
from twophase_tools.colours import DECODE, PREFILL

PREFILL_STYLE: dict[str, Any] = {"facecolor": PREFILL, "alpha": 0.8, "edgecolor": "white", "hatch": "//"}


def _decode_style(num_sequences: int) -> dict[str, Any]:
    if num_sequences > 1:
        return {"facecolor": COLOURS[0], "alpha": 0.85, "edgecolor": "white", "hatch": ".."}
    return {"facecolor": DECODE, "alpha": 0.8, "edgecolor": "white"}


def draw_timeline(trace: Sequence[StepTrace], names: Mapping[str, str]) -> Figure:
    """What each step computed, a row per request and a column per step; below, the blocks in use after each step.

    Two completions of one request decode in one row: that is drawn darker.

    Args:
        trace: The steps to show.
        names: Request id -> what to call it, in the order of rows.
    """
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(9, 1.6 + 0.45 * len(names) + 1.4), sharex=True, facecolor="white",
        height_ratios=(0.6 + 0.45 * len(names), 1.2),
    )  # fmt: skip
    rows = {request: row for row, request in enumerate(names)}
    most_at_once = 1
    for left, step in enumerate(trace):
        decoding = Counter(request for request, *_ in step.chunks[: step.num_decodes])
        most_at_once = max(most_at_once, *decoding.values(), 0)
        for request, number in decoding.items():
            top.barh(rows[request], 1, 0.7, left=left, **_decode_style(number))
        for request, _, _, num_tokens in step.chunks[step.num_decodes :]:
            top.barh(rows[request], 1, 0.7, left=left, **PREFILL_STYLE)
            top.text(left + 0.5, rows[request], str(num_tokens), ha="center", va="center",
                     fontsize=8, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
        for request, _ in step.finished:
            top.plot(left + 1, rows[request], "|", color=INK, markersize=16, markeredgewidth=2)
    top.set_yticks(range(len(names)), list(names.values()))
    top.set_ylim(len(names) - 0.5, -0.5)
    handles = [
        Patch(**PREFILL_STYLE, label="prefill, so many tokens"),
        Patch(**_decode_style(1), label="decode, one token"),
    ]
    if most_at_once > 1:
        handles.append(Patch(**_decode_style(2), label="decode, two completions"))
    top.legend(handles=handles, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1.0), fontsize=9)
    top.set_title("The run, step by step", loc="left", pad=24)

    levels = [step.blocks_in_use for step in trace]
    bottom.stairs(levels, range(len(trace) + 1), color=LINE, alpha=0.25, fill=True)
    bottom.stairs(levels, range(len(trace) + 1), color=INK, baseline=None)
    bottom.set(xlabel="step", ylabel="blocks in use\nafter the step", ylim=(0, None), xlim=(0, len(trace) + 0.2))
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    bottom.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    return done(figure)
