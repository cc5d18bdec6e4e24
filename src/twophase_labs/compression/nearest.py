"""Pictures of rounding, its bits per weight, and the symmetric way of it."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from twophase_labs.compression.changed_model import linears
from twophase_labs.kit.draw import done, one_axes
from twophase_tools.colours import COLOURS, INK, LINE

BITS_OF_SCALE = 16  # also of a minimum
MOST_SHOWN = 3.0  # of a perplexity's ratio, in the picture


def bits_per_weight(bits: int, size: int | str, num_kept: int = 2) -> float:
    """Of all linear layers of SmolLM2: codes, and `num_kept` numbers of 16 bits a group (a scale and a minimum).

    Args:
        size: Of a group; or 'channel', 'tensor'.
    """
    shapes = [module.weight.shape for module in linears().values()]
    num_groups = sum(
        1 if size == "tensor" else num_outputs if size == "channel" else num_outputs * num_inputs // int(size)
        for num_outputs, num_inputs in shapes
    )
    return bits + num_kept * BITS_OF_SCALE * num_groups / sum(shape.numel() for shape in shapes)


def symmetric(weight: Float[Tensor, "O I"], bits: int, group_size: int) -> Float[Tensor, "O I"]:
    """Rounded to scale * code with codes from -(2^(bits-1) - 1) to 2^(bits-1) - 1: no minimum is stored."""
    groups = weight.unflatten(1, (-1, group_size))
    scales = groups.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((groups / scales.clamp(min=torch.finfo(torch.float32).tiny)).round() * scales).flatten(1)


def draw_grids(weight: Float[Tensor, "O I"], output: int, group_size: int, bits: int = 4) -> Figure:
    """The first group of a row, and the values that its weights can have: limits of the tensor, the row, the group."""
    row = weight[output]
    group = row[:group_size]
    figure, axes = plt.subplots(figsize=(9.5, 3.2), facecolor="white")
    limits = {"per tensor": weight, "per channel": row, "per group": group}
    reach = 1.15 * float(row.abs().max())
    for at, (part, colour) in enumerate(zip(limits.values(), (COLOURS[5], COLOURS[1], COLOURS[2]), strict=True)):
        low, high = float(part.min()), float(part.max())
        values = torch.linspace(low, high, 2**bits)
        nearest = values[(group[:, None] - values).abs().argmin(1)]
        error = float((nearest - group).norm() / group.norm())
        seen = values[values.abs() <= reach]
        axes.vlines(seen, at - 0.3, at + 0.3, color=colour, linewidth=2)
        axes.plot(group, torch.full_like(group, at), "o", markersize=4, color=INK, alpha=0.45, markeredgewidth=0)
        axes.text(1.01, at, f"{len(nearest.unique())} values used\nerror {100 * error:.0f} %", va="center", fontsize=9,
                  color=INK, transform=axes.get_yaxis_transform())  # fmt: skip
        axes.text(
            reach * 0.995, at - 0.34, f"from {low:.2f} to {high:.2f}", ha="right", va="bottom", fontsize=8, color=LINE
        )
    axes.set_yticks(range(3), list(limits))
    axes.set(xlim=(-reach, reach), ylim=(2.6, -0.7), xlabel=f"weight ({group_size} neighbours of one row: dots)")
    axes.set_title(f"The {2**bits} values of {bits} bits, spread over a tensor, a row or a group", loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return done(figure)


def in_words(ratio: int | float) -> str:
    """'x1.34', or 'x1.7 million'."""
    return f"x{ratio:.2f}" if ratio < 1e3 else f"x{ratio:,.0f}" if ratio < 1e6 else f"x{ratio / 1e6:.1f} million"


def draw_quality(points: Sequence[tuple[str, int | float, int | float]]) -> Figure:
    """Perplexity, relative to that of the weights as they are, against bits per weight: (name, bits, ratio).

    What is far above the picture is an arrow at its edge.
    """
    figure, axes = one_axes(8.6, 3.6, "SmolLM2's linear layers, rounded to nearest")
    axes.axhline(1, color=LINE, linewidth=1)
    for name, bits, ratio in points:
        if ratio > MOST_SHOWN:
            axes.annotate("", (bits, MOST_SHOWN), (bits, MOST_SHOWN - 0.3),
                          arrowprops={"arrowstyle": "->", "color": COLOURS[0], "linewidth": 1.8})  # fmt: skip
            label, at = f"{name}: {in_words(ratio)}, far above", MOST_SHOWN - 0.2
        else:
            axes.plot(bits, ratio, "o", markersize=7, color=COLOURS[0])
            label, at = f"{name}: {in_words(ratio)}", ratio
        axes.annotate(label, (bits, at), (9, 3), textcoords="offset points", fontsize=9, color=INK)
    axes.set(xlabel="bits per weight, scales and minima included", ylabel="perplexity, relative")
    axes.set_xlim(min(bits for _, bits, _ in points) - 0.05, max(bits for _, bits, _ in points) + 0.3)
    axes.set_ylim(0.8, MOST_SHOWN)
    return done(figure)
