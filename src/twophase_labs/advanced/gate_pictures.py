"""How far predictions drift when K and V are stored in fewer bits."""

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from twophase_tools.bench.quality import estimate
from twophase_tools.colours import COLOURS, INK, LINE


def with_margin(mean: float, margin: float) -> str:
    """Both with as many decimals as the margin is worth: its first digit, and one more where that is a 1.

    >>> with_margin(1.2837, 0.0521), with_margin(0.000551, 0.000104), with_margin(321.5, 40.0)
    ('1.28 \u00b1 0.05', '0.00055 \u00b1 0.00010', '322 \u00b1 40')
    """
    if not (margin > 0 and math.isfinite(margin)):
        return f"{mean:.3g} \u00b1 {margin:g}"
    first, exponent = f"{margin:.0e}".split("e")
    decimals = max(0, -int(exponent) + (first == "1"))
    return f"{mean:.{decimals}f} \u00b1 {margin:.{decimals}f}"


def draw_divergences(divergences: Mapping[str, Float[Tensor, " n"]], bound: float) -> Figure:
    """The mean divergence of each format with its 95 % interval, the means of its stretches, and the bound."""
    figure, axes = plt.subplots(figsize=(8.5, 0.9 + 0.62 * len(divergences)), facecolor="white")
    for row, (values, colour) in enumerate(
        zip(divergences.values(), (COLOURS[0], COLOURS[1], COLOURS[5]), strict=False)
    ):
        found, stretches = estimate(values.double()), values[: len(values) // 64 * 64].view(-1, 64).mean(1)
        axes.plot(stretches, [row + 0.22] * len(stretches), "|", color=LINE, markersize=10, markeredgewidth=1.5)
        axes.errorbar(found.mean, row, xerr=found.margin, fmt="o", color=colour, ecolor=colour, capsize=4, markersize=7)
        axes.annotate(
            with_margin(found.mean, found.margin), (found.mean, row), (0, 7), textcoords="offset points",
            ha="center", fontsize=9, color=INK,
        )  # fmt: skip
    axes.axvline(bound, color=INK, linestyle="--", linewidth=1)
    axes.text(bound * 1.08, len(divergences) - 0.5, f"the gate\u2019s bound: {bound:g}", fontsize=9, color=INK)
    axes.set(xscale="log", xlabel="KL(before || after), mean per token (nats)", ylim=(len(divergences) - 0.4, -0.7))
    axes.margins(x=0.12)
    axes.set_yticks(range(len(divergences)), list(divergences))
    axes.set_title("Mean drift and its 95 % interval; grey: stretches of 64 tokens", loc="left")
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure
