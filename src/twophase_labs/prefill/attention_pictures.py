"""The pictures of lab 2's first half."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from twophase_labs.kit.draw import done, row_of_axes
from twophase_labs.machine.pictures import COLOURS, EMPTY, INK, LINE

MARKERS = ("o", "s", "^", "D", "v")  # told apart without colour too


def draw_steps_of_attention(q: Tensor, k: Tensor) -> Figure:
    """Scores of one head [L, D], the same with the future hidden, and the weights."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    figure, axes = row_of_axes(3, 9.6, 3.5, "constrained")
    titles = ("1. scores", "2. with the future hidden", "3. weights: rows sum to 1")
    for axis, table, title in zip(axes, (scores, scores.masked_fill(hidden, torch.nan), weights), titles, strict=True):
        _numbers(axis, table, signed=table is not weights)
        axis.set(xlabel="position of the key", ylabel="position of the query")
        axis.set_title(title, loc="left")
    return done(figure)


def _numbers(axis: Axes, table: Tensor, signed: bool) -> None:
    """Cells shaded by size, with their numbers; NaN is crossed out."""
    # Shades from light to middle only, so that dark numbers read on all of them.
    span = 8.0 if signed else 2.0
    axis.imshow(table.nan_to_num(0), cmap="PuOr" if signed else "Blues", vmin=-span if signed else 0, vmax=span)
    for i, j in np.ndindex(*table.shape):
        number = float(table[i, j])
        if number != number:
            axis.fill([j - 0.5, j + 0.5, j + 0.5, j - 0.5], [i - 0.5, i - 0.5, i + 0.5, i + 0.5], color=EMPTY)
            axis.text(j, i, "-∞", ha="center", va="center", fontsize=9, color=LINE)
        else:
            text = f"{round(number, 1) + 0:.1f}" if signed else f"{number:.2f}"  # + 0: no -0.0
            axis.text(j, i, text, ha="center", va="center", fontsize=8)
    axis.set_xticks(range(table.shape[1]))
    axis.set_yticks(range(table.shape[0]))


def draw_turning(theta: float, width: int, positions: int, pairs: Sequence[int]) -> Figure:
    """Where the point (1, 0) of some pairs stands at successive positions."""
    figure, axes = row_of_axes(len(pairs), 9.6, 2.9, "constrained")
    for axis, pair, colour in zip(axes, pairs, COLOURS, strict=False):
        step = theta ** (-2 * pair / width)
        axis.add_patch(plt.Circle((0, 0), 1, fill=False, color=LINE, linewidth=0.8))
        for position in range(positions):
            x, y = np.cos(position * step), np.sin(position * step)
            axis.plot([0, x], [0, y], color=colour, linewidth=1, alpha=0.5)
            axis.plot(x, y, "o", color=colour, markersize=4)
            if step > 0.15:  # else the numbers would lie on top of each other
                axis.text(1.22 * x, 1.22 * y, str(position), ha="center", va="center", fontsize=8, color=INK)
        if step <= 0.15:
            axis.text(1.1, 0, f"0 to {positions - 1}", ha="left", va="center", fontsize=8, color=INK)
        axis.set(xlim=(-1.5, 1.8), ylim=(-1.5, 1.5), aspect="equal", xticks=[], yticks=[])
        axis.set(xlabel=f"element {pair}", ylabel=f"element {pair + width // 2}")
        axis.set_title(f"pair {pair}: {step:.2g} rad per position", loc="left", fontsize=10)
    return done(figure)


def draw_attention_maps(
    weights: Mapping[str, Tensor], tokens: Sequence[str], rings: Mapping[str, tuple[int, int]] | None = None
) -> Figure:
    """A map [L, L] per title: which earlier token (column) gets how much of each token's (row) attention.

    Args:
        rings: By title (row, column) of a cell to ring.
    """
    figure, axes = row_of_axes(len(weights), 4.2 * len(weights), 4.6, "constrained")
    names = [token.strip() or "·" for token in tokens]
    for axis, (title, table) in zip(axes, weights.items(), strict=True):
        image = axis.imshow(table, cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set(xlabel="token looked at", ylabel="token that looks")
        axis.set_title(title, loc="left")
        if rings and title in rings:
            row, column = rings[title]
            axis.plot(column, row, "o", markersize=22, markerfacecolor="none", markeredgecolor=COLOURS[5], mew=2)
    figure.colorbar(image, ax=axes, label="share of attention", shrink=0.7)
    return done(figure)


# A100 40 GB: FlashAttention, arXiv:2205.14135, figure 1; L2's size from NVIDIA's data sheet, its rate of the size that
# microbenchmarks report. Bytes, bytes per second.
A100_LEVELS = {"shared": (20e6, 19e12), "L2": (40e6, 5e12), "HBM": (40e9, 1.5e12), "host": (1e12, 12.8e9)}


def draw_memory_levels(rates: Mapping[int, float], large_copy: float) -> Figure:
    """Measured copy rate by size of the buffers, beside the levels of a GPU from a paper.

    Args:
        rates: Bytes per second by bytes in use.
        large_copy: Bytes per second of a large copy, the roof of the lab.
    """
    figure, axes = row_of_axes(2, 9.6, 3.6, "constrained")
    sizes = [size / 2**20 for size in rates]
    axes[0].loglog(sizes, [rate / 1e9 for rate in rates.values()], "o-", color=COLOURS[0], label="copied over and over")
    axes[0].axhline(large_copy / 1e9, color=COLOURS[5], linestyle="--", label="one large copy")
    axes[0].set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes[0].set(xlabel="buffers in use (MiB)", ylabel="read and written (GB/s)")
    axes[0].set_title("This machine, one thread", loc="left")
    names = list(A100_LEVELS)
    heights = [rate / 1e9 for _, rate in A100_LEVELS.values()]
    bars = axes[1].bar(names, heights, color=COLOURS[4], edgecolor=LINE, width=0.6)
    for bar, (size, _) in zip(bars, A100_LEVELS.values(), strict=True):
        amount = (
            f"{size / 1e12:g} TB" if size >= 1e12 else f"{size / 1e9:g} GB" if size >= 1e9 else f"{size / 1e6:g} MB"
        )
        at = (bar.get_x() + bar.get_width() / 2, bar.get_height())
        axes[1].annotate(amount, at, (0, 3), textcoords="offset points", ha="center", color=INK, fontsize=9)
    axes[1].set_yscale("log")
    axes[1].set_ylim(1, 1e5)
    axes[1].set(xlabel="level, and how much of it there is", ylabel="GB/s")
    axes[1].set_title("An A100 (40 GB)", loc="left")
    for axis in axes:
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    low, high = min(*rates.values(), large_copy) / 1e9, max(*rates.values(), large_copy) / 1e9
    axes[0].set_ylim(low / 1.6, high * 2.2)
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes[0].legend(frameon=False, fontsize=9, loc="upper right")
    return done(figure)


def draw_roofline(
    flops_per_s: float, bytes_per_s: float, points: Mapping[str, Mapping[int, tuple[float, float]]]
) -> Figure:
    """Measured rate against intensity under two roofs.

    Args:
        points: For each kind of layer, by number of tokens: FLOP per byte, and FLOP per second reached.
    """
    figure, axes = row_of_axes(1, 8.2, 4.8, "constrained")
    axis, ridge = axes[0], flops_per_s / bytes_per_s
    intensities = [i for kind in points.values() for i, _ in kind.values()]
    lowest, highest = min(*intensities, ridge) / 2, max(*intensities, ridge) * 3
    axis.plot([lowest, ridge], [lowest * bytes_per_s / 1e9, flops_per_s / 1e9], color=INK, linewidth=1.5)
    axis.plot([ridge, highest], [flops_per_s / 1e9] * 2, color=INK, linewidth=1.5)
    axis.axvline(ridge, color=LINE, linestyle=":", linewidth=1)
    ground = axis.get_xaxis_transform()  # x in data, y from the bottom
    axis.text(ridge * 1.06, 0.03, f"ridge: {ridge:.1f} FLOP per byte", transform=ground, color=INK, fontsize=9)
    offsets = ((0, -15), (0, 9))  # one kind's numbers below its points, the other's above
    for (name, kind), colour, marker, offset in zip(points.items(), COLOURS, MARKERS, offsets, strict=False):
        xs, ys = [i for i, _ in kind.values()], [rate / 1e9 for _, rate in kind.values()]
        axis.plot(xs, ys, marker, color=colour, label=name, linestyle="-", linewidth=0.6)
        for num_tokens, x, y in zip(kind, xs, ys, strict=True):
            text = f"{num_tokens:,}"
            box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
            axis.annotate(
                text, (x, y), offset, textcoords="offset points", fontsize=8, ha="center", color=colour, bbox=box
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    for which in (axis.xaxis, axis.yaxis):
        which.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        which.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        which.set_minor_locator(NullLocator())
    rates = [rate / 1e9 for kind in points.values() for _, rate in kind.values()]
    axis.set_ylim(min(rates) / 2, 2 * max(*rates, flops_per_s / 1e9))
    axis.set(xlim=(lowest, highest), xlabel="arithmetic intensity (FLOP per byte)", ylabel="rate (GFLOP/s)")
    axis.set_title("SmolLM2's layers under this machine's roofs; small numbers: tokens", loc="left")
    axis.legend(frameon=False, loc="upper left")
    return done(figure)


def draw_growing(curves: Mapping[str, Mapping[int, int | float]], ylabel: str, title: str) -> Figure:
    """Bytes against prompt length on log axes, drawn in MB."""
    figure, axes = row_of_axes(1, 7, 4.0, "constrained")
    for (name, values), colour, marker in zip(curves.items(), COLOURS, MARKERS, strict=False):
        ys = [value / 1e6 for value in values.values()]
        axes[0].loglog(list(values), ys, marker, color=colour, linestyle="-", linewidth=1, label=name)
    lengths = sorted({length for values in curves.values() for length in values})
    axes[0].set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes[0].minorticks_off()
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[0].set(xlabel="tokens in the prompt, L", ylabel=ylabel)
    axes[0].set_title(title, loc="left")
    axes[0].legend(frameon=False)
    return done(figure)


def draw_saved_traffic(factors: Mapping[str, Mapping[int, float]]) -> Figure:
    """How many times fewer bytes tiled attention moves than the standard way, by prompt length and query tile."""
    figure, axes = row_of_axes(1, 7.4, 3.8, "constrained")
    for (name, values), colour, marker in zip(factors.items(), COLOURS, MARKERS, strict=False):
        axes[0].plot(list(values), list(values.values()), marker, color=colour, linestyle="-", linewidth=1)
        at = (max(values), values[max(values)])
        axes[0].annotate(name, at, (8, 2), textcoords="offset points", va="bottom", color=INK, fontsize=9)
    axes[0].axhline(1, color=LINE, linestyle="--", linewidth=1)
    axes[0].set_xscale("log")
    axes[0].set_yscale("log", base=2)
    lengths = sorted({length for values in factors.values() for length in values})
    axes[0].set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes[0].set_xlim(min(lengths) / 1.3, max(lengths) * 2.6)
    axes[0].xaxis.set_minor_locator(NullLocator())
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} x"))
    axes[0].set(xlabel="tokens in the prompt, L", ylabel="standard / tiled traffic")
    axes[0].set_title("Bytes saved by tiles, one head, D = 64; dashed: nothing gained", loc="left")
    return done(figure)


def draw_running(scores: Tensor) -> Figure:
    """One row of base-2 scores read from left to right: the running maximum and the running sum measured from it."""
    figure, axes = row_of_axes(2, 9.6, 3.4, "constrained")
    keys = np.arange(len(scores))
    most = scores.cummax(0).values
    sums = [float(torch.exp2(scores[: i + 1] - most[i]).sum()) for i in range(len(scores))]
    changed = [i for i in range(1, len(scores)) if most[i] > most[i - 1]]
    axes[0].plot(keys, scores, "o", color=COLOURS[0], markersize=4, label="score of the key")
    axes[0].step(keys, most, where="post", color=COLOURS[5], label="row_max, the largest so far")
    axes[0].set(xlabel="key", ylabel="base-2 score")
    axes[0].set_title("Where the maximum grows ...", loc="left")
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].plot(keys, sums, "s-", color=COLOURS[2], markersize=4, linewidth=1)
    for axis in axes:
        for at in changed:
            axis.axvline(at, color=LINE, linestyle=":", linewidth=0.8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[1].set(xlabel="key", ylabel="row_sum")
    axes[1].set_ylim(bottom=0)
    axes[1].set_title("... what row_sum has collected shrinks", loc="left")
    return done(figure)


def draw_tiles(length: int, block_q: int, block_k: int) -> Figure:
    """The score matrix cut into tiles: wholly visible, on the diagonal, never visited. Numbers give the order."""
    figure, axes = row_of_axes(1, 6.6, 5, "constrained")
    order = 0
    kinds = {
        "wholly visible": (COLOURS[4], ""),
        "on the diagonal: masked": (COLOURS[1], "//"),
        "hidden: never loaded": (EMPTY, ".."),
    }
    for start in range(0, length, block_q):
        last = min(start + block_q, length)
        for at in range(0, length, block_k):
            end = min(at + block_k, length)
            name = list(kinds)[2 if at >= last else 1 if end - 1 > start else 0]
            colour, hatch = kinds[name]
            corners = [at, end, end, at], [start, start, last, last]
            axes[0].fill(*corners, facecolor=colour, hatch=hatch, edgecolor=LINE, linewidth=0.8)
            if at < last:
                order += 1
                middle = (at + end) / 2, (start + last) / 2
                box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none"}
                axes[0].text(*middle, str(order), ha="center", va="center", color=INK, bbox=box)
    for name, (colour, hatch) in kinds.items():
        axes[0].fill([], [], facecolor=colour, hatch=hatch, edgecolor=LINE, label=name)
    axes[0].set(xlim=(0, length), ylim=(length, 0), aspect="equal")
    axes[0].set(xticks=[*range(0, length, block_k), length], yticks=[*range(0, length, block_q), length])
    axes[0].set(xlabel=f"key (tiles of {block_k})", ylabel=f"query (tiles of {block_q})")
    axes[0].set_title(f"{order} tiles of the score matrix, in the order of the loops", loc="left")
    axes[0].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return done(figure)
