"""Which keys did a kernel read? The access map of attention, drawn from the kernel's own output.

With V of slot s set to the unit vector e_s, the output of a query head *is* the weight it gave to every slot: those of
its own pages, of other sequences' pages, and of slots that hold nothing yet. No tracing is needed, so that the map
works for compiled kernels as well.
"""

import io
from collections.abc import Collection, Sequence
from itertools import pairwise

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from twophase_labs.machine.checks import reject, tolerance
from twophase_labs.machine.pictures import COLOURS, INK, LINE

MAX_LABELS = 24
WRONG = COLOURS[5]
UNUSED = COLOURS[4]


def compare_weights(
    got: torch.Tensor,
    expected: torch.Tensor,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_axis: str = "query",
    column_axis: str = "key",
    bounds: Sequence[int] = (),
    groups: Sequence[str] = (),
    unused: Collection[int] = (),
    title: str = "attention weights",
) -> None:
    """Reject weights that are not the expected ones, in words and with the two maps side by side.

    Args:
        got, expected: [rows, columns], floating point.
        rows, columns: A name for each: 'head 3', 'position 16 (page 5, slot 0)'.
        row_axis, column_axis: What they are, for the picture's axes.
        bounds: Columns before which a border is drawn, as between pages.
        groups: A name for what stands between two borders, shown in place of the columns' own.
        unused: Columns that hold nothing; they are shaded.
        title: What is shown.
    """
    if got.shape != expected.shape:
        reject(f"the {title} have shape {list(got.shape)}, expected {list(expected.shape)}")
    kind, wrong = _worst(got.double(), expected.double(), tolerance(got.dtype))
    if not kind:
        return
    row, column = (int(i) for i in wrong.nonzero()[0])
    one, other = float(got[row, column]), float(expected[row, column])
    figure = _draw(got, expected, wrong, kind, rows, columns, row_axis, column_axis, bounds, groups, unused, title)
    reject(
        f"{rows[row]} {kind} {columns[column]}",
        f"its weight is {one:.4g}, expected {other:.4g}; that is so for {int(wrong.sum())} of {wrong.numel()} weights",
        picture=figure_png(figure),
    )


def _worst(got: torch.Tensor, expected: torch.Tensor, closeness: tuple[float, float]) -> tuple[str, torch.Tensor]:
    """What is wrong, and where. A key too few or too many shifts all weights of its row: tell the cause, not that."""
    rtol, atol = closeness[0], max(closeness[1], 1e-4)
    kinds = {
        "gets NaN from": got.isnan() & ~expected.isnan(),
        "reads what it must not see:": (expected == 0) & (got.abs() > atol),
        "does not read": (expected > atol) & (got.abs() <= 1e-7),
        "gives the wrong weight to": ~torch.isclose(got, expected, rtol=rtol, atol=atol),
    }
    for kind, wrong in kinds.items():
        if bool(wrong.any()):
            return kind, wrong
    return "", torch.zeros_like(got, dtype=torch.bool)


def _draw(
    got: torch.Tensor,
    expected: torch.Tensor,
    wrong: torch.Tensor,
    kind: str,
    rows: Sequence[str],
    columns: Sequence[str],
    row_axis: str,
    column_axis: str,
    bounds: Sequence[int],
    groups: Sequence[str],
    unused: Collection[int],
    title: str,
) -> Figure:
    # Not pyplot: a figure in its list would be shown a second time below the notebook's cell.
    figure = Figure(figsize=(11, min(9, 2.3 + 0.28 * len(rows))), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, values, name in ((left, expected, "expected"), (right, got, "yours")):
        # The root, so that small weights are seen beside large ones.
        darkness = values.double().nan_to_num(nan=1).clamp(0, 1).sqrt().numpy()
        axes.imshow(darkness, cmap="Greys", vmin=0, vmax=1.15, aspect="auto", interpolation="nearest")
        for bound in bounds:
            axes.axvline(bound - 0.5, color=LINE, linewidth=1)
        axes.set_title(f"{title}, {name}", loc="left", color=INK)
        axes.set_xlabel(column_axis)
        for column in unused:
            axes.axvspan(column - 0.5, column + 0.5, color=UNUSED, alpha=0.35, linewidth=0)
        if groups:
            edges = [0, *bounds, len(columns)]
            middles = [(first + end - 1) / 2 for first, end in pairwise(edges)]
            axes.set_xticks(middles, groups, fontsize=7)
            axes.tick_params(axis="x", length=0)
        else:
            _label(axes, columns, "x")
    left.set_ylabel(row_axis)
    _label(left, rows, "y")
    for row, column in wrong.nonzero().tolist():
        right.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=WRONG, linewidth=1.6))
    right.annotate(
        f"outlined: {kind.rstrip(':')}", (1, 1.08), xycoords="axes fraction", ha="right", va="bottom", color=WRONG
    )
    return figure


def _label(axes: Axes, names: Sequence[str], which: str) -> None:
    step = max(1, -(-len(names) // MAX_LABELS))
    at = list(range(0, len(names), step))
    if which == "x":
        axes.set_xticks(at, [names[i] for i in at], rotation=90, fontsize=7)
    else:
        axes.set_yticks(at, [names[i] for i in at], fontsize=8)


def figure_png(figure: Figure, dpi: int = 80) -> bytes:
    """The figure as a PNG, small enough for a verdict."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
