"""Pictures of matrices and heads that are cut, and of what cutting brings."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from twophase_labs.kit.draw import done
from twophase_tools.colours import COLOURS, INK, LINE

RANK_COLOURS, HATCHES = (COLOURS[4], COLOURS[1], COLOURS[2], COLOURS[3]), ("", "//", "..", "xx")


def draw_mlp_cut() -> Figure:
    """Gate and up by rows, down by columns, for two ranks."""
    figure, axes = plt.subplots(figsize=(10, 3.6), facecolor="white")
    _matrix(axes, 0.0, 0.4, 2.0, 3.0, "gate", by_rows=True)
    _matrix(axes, 2.6, 0.4, 2.0, 3.0, "up", by_rows=True)
    for rank in range(2):
        colour, hatch = RANK_COLOURS[rank], HATCHES[rank]
        axes.add_patch(Rectangle((5.4, 0.4 + 1.5 * rank), 0.35, 1.5, facecolor=colour, hatch=hatch, edgecolor=INK))
    axes.text(5.57, 0.2, "inner elements", ha="center", va="bottom", fontsize=9, color=INK)
    axes.text(5.95, 1.9, "silu(gate x) · (up x):\neach is whole\non one rank", va="center", fontsize=9, color=INK)
    _matrix(axes, 8.3, 0.9, 3.0, 2.0, "down", by_rows=False)
    for rank in range(2):
        axes.add_patch(
            Rectangle((11.7 + 0.75 * rank, 0.9), 0.35, 2.0, facecolor=RANK_COLOURS[rank], hatch=HATCHES[rank],
                      edgecolor=INK, alpha=0.55)
        )  # fmt: skip
    axes.text(12.25, 1.9, "+", ha="center", va="center", fontsize=13, color=INK)
    axes.text(12.25, 3.15, "all-reduce", ha="center", va="top", fontsize=9, color=INK)
    for rank in range(2):
        axes.add_patch(Rectangle((0.1 + 1.3 * rank, 3.75), 0.35, 0.25, facecolor=RANK_COLOURS[rank],
                                 hatch=HATCHES[rank], edgecolor=INK))  # fmt: skip
        axes.text(0.55 + 1.3 * rank, 3.88, f"rank {rank}", va="center", fontsize=9, color=INK)
    axes.set(xlim=(-0.3, 13.2), ylim=(4.1, -0.1), xticks=[], yticks=[])
    axes.set_title(
        "x comes in from the left, on both ranks; rows are outputs, columns are inputs", loc="left", fontsize=10
    )
    axes.spines[:].set_visible(False)
    return done(figure)


def _matrix(axes: Axes, x: float, y: float, width: float, height: float, name: str, by_rows: bool) -> None:
    for rank in range(2):
        at = (x, y + rank * height / 2) if by_rows else (x + rank * width / 2, y)
        size = (width, height / 2) if by_rows else (width / 2, height)
        axes.add_patch(Rectangle(at, *size, facecolor=RANK_COLOURS[rank], hatch=HATCHES[rank], edgecolor=INK))
    axes.text(x + width / 2, y - 0.1, name, ha="center", va="bottom", fontsize=10, color=INK)


def draw_heads(num_heads: int, num_kv_heads: int, num_ranks: int) -> Figure:
    """Groups of heads, dealt out in order; the first ranks have one more."""
    group = num_heads // num_kv_heads
    base, extra = divmod(num_kv_heads, num_ranks)
    figure, axes = plt.subplots(figsize=(10, 2.2), facecolor="white")
    for kv in range(num_kv_heads):
        rank = next(r for r in range(num_ranks) if kv < (r + 1) * base + min(r + 1, extra))
        look: dict[str, Any] = {"facecolor": RANK_COLOURS[rank], "hatch": HATCHES[rank], "edgecolor": "white"}
        axes.add_patch(Rectangle((kv * group + 0.05, 1.1), group - 0.1, 0.8, **look))
        axes.text((kv + 0.5) * group, 1.5, f"KV head {kv}", ha="center", va="center", fontsize=9, color=INK,
                  bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1.5})  # fmt: skip
        for head in range(kv * group, (kv + 1) * group):
            axes.add_patch(Rectangle((head + 0.05, 0.1), 0.9, 0.8, **look))
            axes.text(head + 0.5, 0.5, f"q {head}", ha="center", va="center", fontsize=9, color=INK,
                      bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1.5})  # fmt: skip
    for rank in range(num_ranks):
        first = rank * base + min(rank, extra)
        last = first + base + (rank < extra)
        axes.text((first + last) / 2 * group, 2.25, f"rank {rank}", ha="center", va="center", color=INK)
        if rank:
            axes.plot([first * group] * 2, [0, 2.4], color=LINE, linestyle="--")
    axes.set(xlim=(-0.1, num_heads + 0.1), ylim=(2.5, -0.05), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return done(figure)


def draw_time_per_token(times_ms: Mapping[str, Mapping[int, tuple[float, float]]]) -> Figure:
    """(reading and computing, all-reduces) in ms for each model and number of GPUs."""
    figure, panels = plt.subplots(1, len(times_ms), figsize=(10, 3.2), facecolor="white", squeeze=False)
    for axes, (name, times) in zip(panels[0], times_ms.items(), strict=True):
        labels = [str(n) for n in times]
        work, talk = zip(*times.values(), strict=True)
        axes.bar(labels, work, color=COLOURS[4], edgecolor=INK, label="reading weights and K/V", width=0.7)
        axes.bar(labels, talk, bottom=work, color=COLOURS[1], edgecolor=INK, hatch="//", label="all-reduces", width=0.7)
        digits = 1 if max(work) > 1 else 2
        for at, (a, b) in enumerate(times.values()):
            axes.text(at, a + b, f"{a + b:.{digits}f}", ha="center", va="bottom", fontsize=8, color=INK)
        axes.set(xlabel="GPUs", ylabel="ms per token, one sequence")
        axes.set_ylim(0, 1.15 * max(a + b for a, b in times.values()))
        axes.set_title(name, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0, -1].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="upper center", ncols=2)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    plt.close(figure)
    return figure
