"""Pictures of a decode kernel at work: a tile's way to its slots, what was read, who is busy, how keys are split."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from twophase_labs.kit.draw import done
from twophase_labs.machine.pictures import COLOURS, EMPTY, INK, LINE


def draw_tile(pages: Sequence[int], seq_len: int, *, start: int, block_n: int, page: int, num_pages: int) -> Figure:
    """One tile of positions, the block table, and the slots in the pool where the tile's keys lie."""
    figure, axes = plt.subplots(figsize=(10, 3.3), facecolor="white")
    width = num_pages * page
    shift = (width - block_n) / 2
    step = width / len(pages)
    for position in range(start, start + block_n):
        x = shift + position - start
        block = position // page
        is_there = position < seq_len
        colour = COLOURS[block % len(COLOURS)] if is_there else "white"
        axes.add_patch(
            Rectangle((x, 4), 0.9, 0.7, facecolor=colour, alpha=0.75, edgecolor=LINE, hatch="" if is_there else "///")
        )
        axes.text(x + 0.45, 4.35, str(position), ha="center", va="center", fontsize=8, color=INK)
    for block, page_id in enumerate(pages):
        used = range(max(start, block * page), min(start + block_n, (block + 1) * page, seq_len))
        colour = COLOURS[block % len(COLOURS)] if used else EMPTY
        x = (block + 0.5) * step
        axes.add_patch(Rectangle((x - 0.7, 2.25), 1.4, 0.7, facecolor=colour, alpha=0.75, edgecolor=LINE))
        axes.text(x, 2.6, str(page_id), ha="center", va="center", color=INK)
        axes.text(x, 2.1, f"entry {block}", ha="center", va="top", fontsize=7, color=INK)
        if used:
            middle = shift + (used[0] + used[-1] + 1) / 2 - start
            _arrow(axes, (middle, 3.95), (x, 3.0), colour)
            _arrow(axes, (x, 1.75), (page_id * page + page / 2, 0.85), colour)
    where = {pages[p // page] * page + p % page: p for p in range(start, min(start + block_n, seq_len))}
    for slot in range(width):
        colour = COLOURS[where[slot] // page % len(COLOURS)] if slot in where else EMPTY
        axes.add_patch(Rectangle((slot, 0), 0.9, 0.7, facecolor=colour, alpha=0.75, edgecolor=LINE, linewidth=0.6))
        if slot in where:
            axes.text(slot + 0.45, 0.35, str(where[slot]), ha="center", va="center", fontsize=8, color=INK)
    for number in range(num_pages):
        axes.text(number * page + page / 2, -0.12, f"block {number}", ha="center", va="top", fontsize=7, color=INK)
    for y, name in (
        (4.35, "positions of the tile\n(hatched: masked)"),
        (2.6, "block table"),
        (0.35, "slots in the pool"),
    ):
        axes.text(-0.6, y, name, ha="right", va="center", color=INK)
    axes.set(xlim=(-7, width + 0.2), ylim=(-0.8, 5.0), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return done(figure)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.6})


def draw_weights(
    weights: Tensor,
    *,
    rows: Sequence[str],
    bounds: Sequence[int],
    xlabel: str,
    ylabel: str,
    title: str,
    bound_names: Sequence[str] = (),
) -> Figure:
    """A table of weights as shades of grey, with borders before the columns `bounds`."""
    figure, axes = plt.subplots(figsize=(10, 1.4 + 0.26 * len(rows)), facecolor="white")
    image = axes.imshow(visible_shades(weights), cmap="Greys", vmin=0, vmax=1.1, aspect="auto", interpolation="nearest")
    for bound in bounds:
        axes.axvline(bound - 0.5, color=LINE, linewidth=1)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    if bound_names:
        edges = [0, *bounds, weights.shape[1]]
        centres = [(a + b - 1) / 2 for a, b in pairwise(edges)]
        axes.set_xticks(centres, bound_names, fontsize=8)
        axes.tick_params(axis="x", length=0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel, labelpad=8)
    axes.set_title(title, loc="left")
    ticks = visible_shades(torch.tensor([0, 0.01, 0.1, 0.5, 1])).tolist()
    bar = figure.colorbar(image, ax=axes, ticks=ticks, pad=0.01)
    bar.set_ticklabels(["not read", "0.01", "0.1", "0.5", "1"])
    bar.set_label("weight")
    return done(figure)


def visible_shades(weights: Tensor) -> np.ndarray:
    """White for 0 and for nothing else: what is read at all is seen, however little it weighs."""
    shades = 0.22 + 0.78 * weights.float().clamp(0, 1).sqrt()
    return torch.where(weights > 0, shades, 0.0).numpy()


def draw_busy(programs: Mapping[str, int], num_sms: int) -> Figure:
    """Multiprocessors as squares: dark has a program, light has none. A panel per launch."""
    columns = 22
    figure, panels = plt.subplots(1, len(programs), figsize=(11, 2.0), facecolor="white")
    for axes, (name, number) in zip(np.atleast_1d(panels), programs.items(), strict=True):
        for sm in range(num_sms):
            row, column = divmod(sm, columns)
            colour = COLOURS[0] if sm < number else EMPTY
            axes.add_patch(Rectangle((column, row), 0.86, 0.86, facecolor=colour, edgecolor=LINE, linewidth=0.5))
        axes.set(xlim=(-0.2, columns), ylim=(-(-num_sms // columns) + 0.1, -0.2), xticks=[], yticks=[])
        axes.set_aspect("equal")
        axes.set_title(name, loc="left", fontsize=10)
        busy = min(number, num_sms)
        axes.set_xlabel(f"{number} programs: {busy} of {num_sms} SMs busy", color=INK)
        axes.spines[:].set_visible(False)
    return done(figure)
