"""What the labs' pictures have in common."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twophase_tools.colours import COLOURS, INK


def row_of_axes(
    num_axes: int, width: int | float, height: int | float, layout: str | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with so many axes beside each other, without frames."""
    figure, axes = plt.subplots(1, num_axes, figsize=(width, height), facecolor="white", squeeze=False, layout=layout)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def one_axes(width: int | float, height: int | float, title: str = "") -> tuple[Figure, Axes]:
    """A figure with one picture, without a frame at the top and on the right."""
    figure, (axes,) = row_of_axes(1, width, height)
    axes.set_title(title, loc="left")
    return figure, axes


def bar_panels(
    names: Iterable[str],
    columns: Mapping[str, tuple[Sequence[float], str]],
    title: str,
    colours: Sequence[str] = COLOURS,
) -> tuple[Figure, list[Axes]]:
    """A panel for each column of a table, a bar for each of its rows.

    Args:
        names: Of the rows.
        columns: Label -> the column's values, and the format of the numbers beside the bars.
    """
    names = list(names)
    figure, panels = row_of_axes(len(columns), 10.5, 0.9 + 0.42 * len(names))
    for axes, (label, (values, form)), colour in zip(panels, columns.items(), colours, strict=False):
        bars = axes.barh(names, values, 0.7, color=colour, edgecolor=INK, linewidth=0.5)
        for told in axes.bar_label(bars, [form.format(value) for value in values], padding=4, fontsize=9, color=INK):
            told.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.0})  # a line may be behind it
            told.set_zorder(3)
        axes.set(xlabel=label, xlim=(0, 1.25 * max(*values, 1e-9)))
        axes.invert_yaxis()
        axes.tick_params(labelleft=axes is panels[0])
    panels[0].set_title(title, loc="left")
    return figure, panels


def done(figure: Figure) -> Figure:
    """Laid out, and closed for pyplot: a notebook would show it twice, as the cell's value and as an open figure."""
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    plt.close(figure)
    return figure
