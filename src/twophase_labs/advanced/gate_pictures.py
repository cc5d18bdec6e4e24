"""How far predictions drift when K and V are stored in fewer bits."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from twophase.core.colours import COLOURS, INK

MARKERS = ("o", "s", "^")


def draw_divergences(divergences: Mapping[str, Float[Tensor, " n"]], bound: float) -> Figure:
    """The divergence at each position of a text, a colour for each format, and the bound of its mean."""
    figure, axes = plt.subplots(figsize=(10, 3.8), facecolor="white")
    for (name, values), colour, marker in zip(
        divergences.items(), (COLOURS[0], COLOURS[1], COLOURS[5]), MARKERS, strict=False
    ):
        label = f"{name}: mean {float(values.mean()):.2g}"
        axes.plot(values.clamp(min=1e-6), marker, markersize=3, color=colour, alpha=0.7, linestyle="", label=label)
    axes.axhline(bound, color=INK, linestyle="--", linewidth=1)
    axes.text(len(values), bound * 1.15, f"the gate's bound of the mean: {bound:g}", ha="right", va="bottom", color=INK)
    axes.set(yscale="log", xlabel="position in the text (tokens)", ylabel="KL(before || after) in nats")
    axes.set_title("Drift at each position", loc="left")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure
