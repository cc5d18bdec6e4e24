"""The pictures of lab 1's first half: what a text's probability is made of, how work grows, what is left."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from twophase_labs.kit.draw import done, row_of_axes
from twophase_labs.kit.timing import fitted_exponent
from twophase_labs.machine.pictures import COLOURS, EMPTY, INK, LINE

STYLES = (("o", "-"), ("s", "--"), ("^", ":"))  # told apart without colour too


def draw_surprises(tokens: Sequence[str], log_probs: Float[Tensor, " T"]) -> Figure:
    """A bar per token: how many bits of surprise it was."""
    bits = (-log_probs / math.log(2)).tolist()
    figure, axes = row_of_axes(1, 9, 3.2)
    axes[0].bar(range(len(bits)), bits, color=COLOURS[0])
    axes[0].set_xticks(range(len(tokens)), [token.strip() for token in tokens], rotation=45, ha="right")
    axes[0].set(xlabel="token, predicted from those before it", ylabel="surprise (bits)")
    axes[0].set_title("Surprise, token by token", loc="left")
    return done(figure)


def draw_dependence(changes: Float[Tensor, "T T"]) -> Figure:
    """`changes[i, j]`: by how much the logits at position i change if token j is replaced."""
    figure, axes = row_of_axes(1, 5.2, 4.4)
    _draw_cells(axes[0], changes > 0, "changes", "stays as it was, to the last bit")
    axes[0].set(xlabel="token that was replaced", ylabel="position whose logits are compared")
    axes[0].set_title("Which logits depend on which token", loc="left")
    return done(figure)


def draw_visible(masks: Mapping[str, Bool[Tensor, "L S"]]) -> Figure:
    """For each title which keys (columns) each query (row) may see; the queries are the last rows of all positions."""
    figure, axes = row_of_axes(len(masks), 9, 3.8)
    for axis, (title, mask) in zip(axes, masks.items(), strict=True):
        num_queries, num_keys = mask.shape
        _draw_cells(axis, mask, "sees", "hidden", first_row=num_keys - num_queries)
        # All rows of the triangle keep their place, so that a panel shows which part of it is left.
        axis.set(xlabel="position of the key", ylabel="position of the query", ylim=(num_keys - 0.5, -0.5))
        axis.set_title(title, loc="left", fontsize=10)
    return done(figure)


def draw_passes(num_prompt: int, num_new: int) -> Figure:
    """Which positions each pass computes, without and with a cache."""
    figure, axes = row_of_axes(2, 9, 3.4)
    for axis, cached in zip(axes, (False, True), strict=True):
        total = 0
        for row in range(num_new):
            length = num_prompt + row
            start = length - 1 if cached and row else 0
            # The bar of positions [start, length), each position centred on its number.
            axis.barh(row + 1, start, 0.8, left=-0.5, color=EMPTY, edgecolor=LINE, hatch="..", linewidth=0.5)
            axis.barh(row + 1, length - start, 0.8, left=start - 0.5, color=COLOURS[2], edgecolor="white")
            total += length - start
        axis.set(xlabel="position", ylabel="pass", xlim=(-0.5, num_prompt + num_new - 1.5))
        axis.invert_yaxis()
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_title(f"{'with' if cached else 'without'} a cache: {total} positions computed", loc="left")
    return done(figure)


def draw_growth(curves: Mapping[str, Mapping[int, float]], fit_from: int) -> Figure:
    """Seconds against length on log axes, and the power law through the lengths from `fit_from` on."""
    figure, axes = row_of_axes(1, 6.4, 4.2)
    for (name, times), colour, (marker, line) in zip(curves.items(), COLOURS, STYLES, strict=False):
        fitted = {length: s for length, s in times.items() if length >= fit_from}
        slope = fitted_exponent(fitted)
        axes[0].loglog(list(times), list(times.values()), marker, color=colour, label=f"{name}: exponent {slope:.2f}")
        ends = np.array([fit_from, max(times)])
        middle = np.exp([np.mean(np.log(list(fitted))), np.mean(np.log(list(fitted.values())))])
        axes[0].loglog(ends, middle[1] * (ends / middle[0]) ** slope, line, color=colour, linewidth=1)
    axes[0].set(xlabel="tokens written, T", ylabel="time (s)")
    axes[0].set_title(f"Time to write T tokens; lines fitted from T = {fit_from}", loc="left")
    axes[0].legend(frameon=False)
    return done(figure)


def draw_steps(curves: Mapping[str, Sequence[float]], first_length: int) -> Figure:
    """Milliseconds of each pass against the length of the sequence it extends."""
    figure, axes = row_of_axes(1, 8.6, 3.6)
    for i, ((name, elapsed_s), colour, (marker, _)) in enumerate(zip(curves.items(), COLOURS, STYLES, strict=False)):
        lengths = range(first_length, first_length + len(elapsed_s))
        # Open and larger from the second curve on, so that a point of the first shows through one at its place.
        style = {"markersize": 4} if i == 0 else {"markersize": 5, "markerfacecolor": "none"}
        axes[0].plot(lengths, [s * 1e3 for s in elapsed_s], marker, color=colour, label=name, **style)
    axes[0].set(xlabel="tokens in the text before the pass", ylabel="time of the pass (ms)")
    if len(curves) > 1:
        axes[0].set_yscale("log")  # else the passes with a cache lie on the axis
        axes[0].yaxis.set_major_formatter("{x:g}")
    else:
        axes[0].set_ylim(bottom=0)
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_title("Time of each pass", loc="left")
    axes[0].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return done(figure)


def draw_per_token(per_token_s: Mapping[str, float]) -> Figure:
    """A bar per way of handling a token, in milliseconds; the first is the measure of the others."""
    figure, axes = row_of_axes(1, 8, 0.9 + 0.5 * len(per_token_s))
    milliseconds = [1e3 * s for s in per_token_s.values()]
    rows = range(len(milliseconds))
    axes[0].barh(
        rows, milliseconds, 0.6, color=[COLOURS[1 if row == 0 else 0] for row in rows]
    )  # prefill orange, decode blue
    for row, value in enumerate(milliseconds):
        times = "" if row == 0 else f", {value / milliseconds[0]:.1f} times as long"
        axes[0].text(value, row, f" {value:.1f} ms{times}", va="center", color=INK)
    axes[0].set(yticks=rows, yticklabels=list(per_token_s), xlabel="time per token (ms)")
    axes[0].set_xlim(0, 1.6 * max(milliseconds))
    axes[0].invert_yaxis()
    axes[0].set_title("Time per token, read and written", loc="left")
    return done(figure)


def _draw_cells(axes: Axes, on: Bool[Tensor, "L S"], yes: str, no: str, first_row: int = 0) -> None:
    """Filled where true; a dot as well, so that it does not hang on the shade alone."""
    num_rows, num_columns = on.shape
    edges = np.arange(num_columns + 1) - 0.5, np.arange(num_rows + 1) - 0.5 + first_row
    axes.pcolormesh(*edges, on.int().numpy(), cmap="Blues", vmin=0, vmax=1.6, edgecolors=LINE, linewidth=0.5)
    rows, columns = on.nonzero(as_tuple=True)
    axes.plot(columns, rows + first_row, "o", color=INK, markersize=3.5, label=yes)
    axes.plot([], [], "s", markerfacecolor="white", markeredgecolor=LINE, label=no)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.22), ncols=2, fontsize=9)
