"""The picture of `twophase bench quality --sensitivity`: damage by layer, and by kind of linear layer."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twophase_tools.bench.sensitivity import Damage, SensitivityReport
from twophase_tools.colours import COLOURS, INK, LINE

BLUE, ORANGE, GREEN, *_ = COLOURS
NAMED_LAYERS = 12  # more ticks than that cannot be read


def draw_sensitivity(report: SensitivityReport) -> Figure:
    """Mean KL with its 95 % interval, on one logarithmic axis: by layer, by kind, and of everything at once.

    What costs nothing at all (a part that the scheme leaves alone) has no mark, as a logarithm has no zero; nor has
    what is infinite.
    """
    num_layers = len(report.layers)
    figure = Figure(figsize=(10, 4.2), layout="constrained", facecolor="white")
    by_layer, by_kind = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    _marks(by_layer, report.layers, [BLUE] * num_layers)
    shown = range(0, num_layers, -(-num_layers // NAMED_LAYERS))
    by_layer.set_xticks(shown, [str(number) for number in shown])
    by_layer.set(xlabel="layer quantised, all others plain", ylabel="mean KL from the plain model (nats)")
    rest = (*report.kinds, report.everything)
    _marks(by_kind, rest, [ORANGE] * len(report.kinds) + [INK])
    by_kind.set_xticks(range(len(rest)), [damage.part for damage in rest], rotation=20)
    by_kind.set_xlabel("kind quantised, in all layers")
    if report.sum_over_layers > 0:
        by_kind.axhline(report.sum_over_layers, color=LINE, linestyle="--", linewidth=1)
        by_kind.annotate(
            "layers and head added up", (0, report.sum_over_layers), (0, 4), textcoords="offset points", fontsize=8
        )
        by_layer.set_yscale("log")
    for axes in (by_layer, by_kind):
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["right", "top"]].set_visible(False)
    figure.suptitle(f"{report.quantization}: which part breaks first ({report.num_tokens:,} tokens)", x=0.01, ha="left")
    return figure


def _marks(axes: Axes, damages: Sequence[Damage], colours: Sequence[str]) -> None:
    for place, (damage, colour) in enumerate(zip(damages, colours, strict=True)):
        kl = damage.drift.kl
        if 0 < kl.mean < math.inf:
            # Half a decade down at most: an interval that reaches zero has no end on a logarithmic axis.
            down = min(kl.margin, 0.7 * kl.mean)
            axes.errorbar(place, kl.mean, yerr=[[down], [kl.margin]], fmt="o", color=colour, capsize=3, markersize=5)
