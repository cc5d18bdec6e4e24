"""What the labs' pictures have in common."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def row_of_axes(
    num_axes: int, width: int | float, height: int | float, layout: str | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with so many axes beside each other, without frames."""
    figure, axes = plt.subplots(1, num_axes, figsize=(width, height), facecolor="white", squeeze=False, layout=layout)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def done(figure: Figure) -> Figure:
    """Laid out, and closed for pyplot: a notebook would show it twice, as the cell's value and as an open figure."""
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    plt.close(figure)
    return figure
