"""Data-parallel attention: each rank has requests of its own, and all ranks take every step together."""

from collections.abc import Sequence
from itertools import groupby

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from twophase_labs.kit.draw import done
from twophase_tools.colours import DECODE, EMPTY, INK, LINE

LENGTHS = (40, 150, 60, 90, 30, 120, 210, 80, 25, 70, 50, 110)  # completions, in tokens


def steps_together(lengths: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Tokens of each rank in each step, [steps, ranks]: completions are dealt out in turn, and all begin at once. The
    last step is that of the longest; a rank with 0 tokens runs a dummy batch."""
    return [
        [sum(length > step for length in lengths[rank::num_ranks]) for rank in range(num_ranks)]
        for step in range(max(lengths))
    ]


def line(steps: Sequence[Sequence[int]]) -> str:
    """How much of the ranks' time is dummy batches."""
    batches = [num_tokens for step in steps for num_tokens in step]
    num_dummy = batches.count(0)
    return (
        f"{len(steps)} steps of {len(steps[0])} ranks: {sum(batches):,} tokens; "
        f"{num_dummy} of {len(batches)} batches are dummies ({num_dummy / len(batches):.0%})"
    )


def draw_steps(steps: Sequence[Sequence[int]]) -> Figure:
    """A lane for each rank: how many sequences it decodes in each step, and its dummy batches."""
    figure, axes = plt.subplots(figsize=(10, 2.8), facecolor="white")
    for rank, lane in enumerate(zip(*steps, strict=True)):
        start = 0
        for num_tokens, same in groupby(lane):
            width = len(list(same))
            look = {"facecolor": DECODE, "alpha": 0.25 * (1 + num_tokens)} if num_tokens else {"facecolor": EMPTY}
            hatch = None if num_tokens else "///"
            axes.add_patch(Rectangle((start, rank), width, 0.8, hatch=hatch, edgecolor=LINE, **look))
            text = str(num_tokens) if num_tokens else "dummy batches"
            axes.text(start + width / 2, rank + 0.4, text, ha="center", va="center", fontsize=9, color=INK,
                      bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1})  # fmt: skip
            start += width
    axes.set(xlim=(0, len(steps)), ylim=(len(steps[0]), -0.1), xlabel="step")
    axes.set_yticks([rank + 0.4 for rank in range(len(steps[0]))], [f"rank {rank}" for rank in range(len(steps[0]))])
    axes.set_title("Sequences that each rank decodes, step by step", loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return done(figure)
