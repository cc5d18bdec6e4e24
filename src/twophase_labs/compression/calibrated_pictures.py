"""Pictures of sections 4 to 6: outliers, columns that matter, errors that are passed on."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from twophase_labs.compression.changed_model import recorded_inputs, weight_of
from twophase_labs.kit.draw import done, one_axes
from twophase_tools.colours import COLOURS, EMPTY, INK, LINE

INT8_MAX = 127


def draw_outliers(names: Sequence[str]) -> Figure:
    """A point per input: its largest magnitude over 512 tokens; below, the largest of its weights."""
    figure, panels = plt.subplots(2, len(names), figsize=(10, 5.2), facecolor="white", sharey=True, squeeze=False)
    for column, name in enumerate(names):
        rows = (recorded_inputs()[name], weight_of(name))
        for axes, values, of, colour in zip(
            panels[:, column], rows, ("inputs", "weights"), (COLOURS[1], COLOURS[0]), strict=True
        ):
            _points(axes, values.abs().amax(0), colour)
            axes.set_title(f"{of} of layer {name.replace('.self_attn.', ', ').replace('.mlp.', ', ')}", loc="left",
                           fontsize=10)  # fmt: skip
    for axes in panels[:, 0]:
        axes.set_ylabel("largest magnitude")
    for axes in panels[1]:
        axes.set_xlabel("input channel")
    return done(figure)


def _points(axes: Axes, maxima: Tensor, colour: str) -> None:
    half_step = float(maxima.max()) / INT8_MAX / 2
    axes.plot(maxima.tolist(), ".", markersize=3, color=colour)
    axes.axhspan(1e-9, half_step, color=EMPTY, zorder=0)
    axes.axhline(half_step, color=LINE, linewidth=1)
    axes.text(len(maxima) / 2, 1.4e-3, "becomes 0 if one int8 scale serves all", ha="center", fontsize=8, color=INK)
    axes.set(yscale="log", xlim=(-0.01 * len(maxima), 1.01 * len(maxima)), ylim=(1e-3, 6e3))
    axes.spines[["top", "right"]].set_visible(False)


def draw_kept_columns(name: str, shares: Sequence[float], errors: Mapping[str, Sequence[float]]) -> Figure:
    """The output's error of a layer against the share of its columns that are not rounded, a line per rule."""
    figure, axes = one_axes(7, 3.2)
    for (rule, values), colour, marker in zip(errors.items(), (LINE, COLOURS[0], COLOURS[1]), "os^", strict=True):
        axes.plot([100 * share for share in shares], [100 * value for value in values], marker=marker, color=colour,
                  label=rule)  # fmt: skip
    axes.set(xlabel="columns that keep all their bits (%)", ylabel="error of the output (%)", ylim=(0, None))
    axes.set_title(
        f"Layer {name.replace('.self_attn.', ', ')}: some columns keep all their bits", loc="left", fontsize=11
    )
    axes.legend(frameon=False, title="which columns")
    return done(figure)


def draw_columns(num_columns: int = 16, at: int = 6, group_size: int = 4) -> Figure:
    """A weight matrix while it is rounded: columns done, the current one, those that will make up for its error."""
    figure, axes = plt.subplots(figsize=(8, 2.6), facecolor="white")
    for i in range(num_columns):
        colour = COLOURS[2] if i < at else COLOURS[1] if i == at else COLOURS[4]
        alpha = 1.0 if i <= at else 0.75 - 0.045 * (i - at)
        axes.add_patch(Rectangle((i, 0), 1, 3, facecolor=colour, alpha=alpha, edgecolor="white", linewidth=1.5))
    for start in range(0, num_columns, group_size):
        axes.plot([start, start], [-0.15, 3.15], color=INK, linewidth=1.2)
        axes.text(start + group_size / 2, -0.25, f"group {start // group_size}", ha="center", va="top", fontsize=9)
    axes.plot([num_columns] * 2, [-0.15, 3.15], color=INK, linewidth=1.2)
    for i in range(at + 1, num_columns, 2):
        curve = f"arc3,rad={-0.5 + 0.02 * (i - at)}"
        arrow = {"arrowstyle": "->", "color": INK, "connectionstyle": curve, "linewidth": 0.9}
        axes.annotate("", xy=(i + 0.5, 3.05), xytext=(at + 0.5, 3.05), arrowprops=arrow)
    axes.text(at / 2, 1.5, "rounded", ha="center", va="center", fontsize=10)
    axes.text(at + 0.5, 1.5, "now", ha="center", va="center", fontsize=10, rotation=90)
    axes.text(
        (at + 1 + num_columns) / 2, 1.5, "changed, to make up for the error", ha="center", va="center", fontsize=10
    )
    axes.set(xlim=(-0.3, num_columns + 0.3), ylim=(-0.9, 5.4), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return done(figure)


def draw_errors(
    counts: Sequence[int], errors: Mapping[str, tuple[Sequence[float], Sequence[float]]], nearest: Mapping[str, float]
) -> Figure:
    """Per layer: GPTQ's error on the calibration text and on a fresh one, against the calibration text's length."""
    figure, panels = plt.subplots(1, len(errors), figsize=(10, 3.1), facecolor="white", squeeze=False)
    for axes, (name, (known, fresh)) in zip(panels[0], errors.items(), strict=True):
        axes.axhline(100 * nearest[name], color=LINE, linestyle="--", label="nearest, fresh text")
        axes.plot(counts, [100 * value for value in fresh], "o-", color=COLOURS[5], label="GPTQ, fresh text")
        axes.plot(counts, [100 * value for value in known], "s-", color=COLOURS[2], label="GPTQ, calibration text")
        axes.set(xscale="log", xticks=counts, xticklabels=[str(count) for count in counts], ylim=(0, None))
        axes.minorticks_off()
        axes.set(xlabel="tokens of calibration text")
        axes.set_title(f"layer {name.replace('.self_attn.', ', ').replace('.mlp.', ', ')}", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("error of the output (%)")
    panels[0, -1].legend(frameon=False, fontsize=8)
    return done(figure)
