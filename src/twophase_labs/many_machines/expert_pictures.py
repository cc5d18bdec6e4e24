"""Pictures of experts: which a step reads, where rows travel, and how uneven it is."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor

from twophase_labs.kit.draw import done, one_axes
from twophase_tools.colours import COLOURS, INK, LINE

RANK_COLOURS, HATCHES = (COLOURS[4], COLOURS[1], COLOURS[2], COLOURS[3]), ("", "//", "..", "xx")


def draw_touched(found: Mapping[int, float], num_experts: int, num_chosen: int) -> Figure:
    """Experts per layer that a decode step reads, measured, beside what choices at random would give."""
    batches = np.array(sorted(found))
    fine = np.geomspace(batches[0], batches[-1], 100)
    figure, axes = one_axes(7.6, 3.6, "A larger batch wakes more experts")
    axes.plot(fine, num_experts * (1 - (1 - num_chosen / num_experts) ** fine), "--", color=COLOURS[0],
              label="at random: E (1 - (1 - K/E)^B)")  # fmt: skip
    axes.plot(batches, [found[int(b)] for b in batches], "o", color=INK, label="measured in the engine")
    axes.axhline(num_experts, color=LINE, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(b) for b in batches])
    axes.set(xlabel="sequences in the batch", ylabel="experts read per layer and step", ylim=(0, num_experts * 1.08))
    axes.legend(frameon=False, loc="lower right")
    return done(figure)


def draw_all_to_all() -> Figure:
    """Two ranks with three tokens each, an expert for each token: rows to the experts, and back."""
    figure, axes = plt.subplots(figsize=(10, 3.8), facecolor="white")
    columns = {"routed": 0.0, "at their experts": 4.2, "back": 8.4}
    sends = ((0, 0, 0), (0, 1, 1), (0, 2, 1), (1, 0, 1), (1, 1, 0), (1, 2, 1))  # (home, token, rank of its expert)
    for name, x in columns.items():
        axes.text(x + 0.8, -0.35, name, ha="center", va="bottom", fontsize=10, color=INK)
    filled = [0, 0]
    for home, token, rank in sends:
        look: dict[str, Any] = {"facecolor": RANK_COLOURS[home], "hatch": HATCHES[home], "edgecolor": INK}
        y = 2.3 * home + 0.55 * token
        there = 2.3 * rank + 0.5 * filled[rank]
        filled[rank] += 1
        for x, at in ((0.0, y), (4.2, there), (8.4, y)):
            axes.add_patch(Rectangle((x, at), 1.6, 0.42, **look))
            axes.text(x + 0.8, at + 0.21, f"token {token}", ha="center", va="center", fontsize=8, color=INK,
                      bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1})  # fmt: skip
        for x, a, b in ((1.65, y, there), (5.85, there, y)):
            axes.add_patch(
                FancyArrowPatch((x, a + 0.21), (x + 2.5, b + 0.21), arrowstyle="->", mutation_scale=9, color=LINE,
                                linestyle=("-", "--")[home])
            )  # fmt: skip
    axes.text(2.9, 4.75, "dispatch: all-to-all", ha="center", fontsize=9, color=INK)
    axes.text(7.1, 4.75, "combine: all-to-all", ha="center", fontsize=9, color=INK)
    for rank in range(2):
        axes.text(-0.2, 2.3 * rank + 0.8, f"rank {rank}", ha="right", va="center", fontsize=10, color=INK)
    axes.axhline(2.1, color=LINE, linewidth=1, linestyle=":")
    axes.set_title("Drawn with one expert per token", loc="left", fontsize=10)
    axes.set(xlim=(-1.3, 10.2), ylim=(4.9, -0.8), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return done(figure)


def draw_load(load: Tensor, num_ranks: int) -> Figure:
    """Rows of each expert in each layer; a colour and a hatch per rank, and the mean."""
    num_layers, num_experts = load.shape
    figure, panels = plt.subplots(1, num_layers, figsize=(10, 2.8), facecolor="white", sharey=True, squeeze=False)
    per_rank = num_experts // num_ranks
    for number, axes in enumerate(panels[0]):
        for rank in range(num_ranks):
            experts = range(rank * per_rank, (rank + 1) * per_rank)
            axes.bar(list(experts), load[number, list(experts)].tolist(), 0.85, color=RANK_COLOURS[rank],
                     hatch=HATCHES[rank], edgecolor=INK, linewidth=0.5, label=f"rank {rank}")  # fmt: skip
        axes.axhline(float(load[number].double().mean()), color=COLOURS[5], linestyle="--", linewidth=1.2)
        axes.set_title(f"layer {number}", loc="left", fontsize=10)
        axes.set_xlabel("expert")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("rows (dashed: the mean)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="upper center", ncols=num_ranks)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    plt.close(figure)
    return figure
