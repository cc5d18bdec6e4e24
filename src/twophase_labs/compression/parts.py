"""SmolLM2's linear layers in eight parts, each kind in each half of the depth: what fewer bits of one part cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from twophase.core.colours import COLOURS, INK, LINE
from twophase_labs.compression.own_engine import (
    KINDS,
    NUM_LAYERS,
    PLACES,
    OwnModel,
    Place,
    drift,
    in_groups,
    matrix,
)

NUM_TOKENS = 256
FORMATS = ("4 bits", "8 bits", "16 bits")


def name_of(place: Place) -> str:
    layer, kind = place
    return f"{kind} {'late' if layer >= NUM_LAYERS // 2 else 'early'}"


PARTS = tuple(dict.fromkeys(name_of(place) for place in sorted(PLACES, key=lambda place: list(KINDS).index(place[1]))))


@dataclass(frozen=True)
class Formats:
    """The model in 4 and in 8 bits, and what a part in 4 bits costs alone.

    Attributes:
        four, eight: Every matrix in so many bits.
        damage: Mean KL in nats from the plain model, by part.
    """

    four: OwnModel
    eight: OwnModel
    damage: Mapping[str, float]

    def num_bytes(self, part: str) -> tuple[float, float, float]:
        """Of a part in each of `FORMATS`."""
        places = [place for place in PLACES if name_of(place) == part]
        in_four, in_eight = (
            sum(own.matrices[place].stored_bytes for place in places) for own in (self.four, self.eight)
        )
        return in_four, in_eight, sum(2.0 * matrix(place).numel() for place in places)

    def worth(self, part: str) -> float:
        """Nats that this part in 8 bits, instead of 4, avoids for each megabyte more."""
        in_four, in_eight, _ = self.num_bytes(part)
        return self.damage[part] / (in_eight - in_four) * 1e6

    def options(self) -> list[list[tuple[float, float]]]:
        """For each part, for each of `FORMATS`: megabytes and damage. Beyond 4 bits damage counts as none."""
        return [
            [
                (num_bytes / 1e6, damage)
                for num_bytes, damage in zip(self.num_bytes(part), (cost, 0.0, 0.0), strict=True)
            ]
            for part, cost in self.damage.items()
        ]

    def mixed(self, chosen: list[int]) -> OwnModel:
        """The model of a choice: an index of `FORMATS` for each part. In 16 bits a matrix stays as it is."""
        number_of = dict(zip(PARTS, chosen, strict=True))
        own = {place: (self.four, self.eight, None)[number_of[name_of(place)]] for place in PLACES}
        return OwnModel({place: model.matrices[place] for place, model in own.items() if model is not None})


def own_formats(quantize: Callable[..., Any], factors: Mapping[Place, Tensor]) -> Formats:
    """By the learner's functions: 4 bits with AWQ's factors, 8 bits to nearest."""
    four, eight = in_groups(quantize, 4, factors), in_groups(quantize, 8)
    alone = {part: OwnModel({p: each for p, each in four.matrices.items() if name_of(p) == part}) for part in PARTS}
    return Formats(four, eight, {part: measured_kl(model) for part, model in alone.items()})


@cache
def measured_kl(own: OwnModel) -> float:
    """Mean KL in nats of the engine with these matrices from SmolLM2 as it is, both in float32; measured once."""
    return drift(own, NUM_TOKENS).kl.mean


def draw_parts(formats: Formats) -> Figure:
    """What each part costs in 4 bits, and how much of it each further megabyte avoids."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.2), facecolor="white")
    colours = [COLOURS[1] if "late" in part else COLOURS[4] for part in PARTS]
    shown = {
        "One part in 4 bits, all others as they are": ("mean KL, nats", [formats.damage[part] for part in PARTS]),
        "... avoided by 8 bits, per megabyte more": ("nats per MB", [formats.worth(part) for part in PARTS]),
    }
    for axes, (title, (unit, values)) in zip(panels, shown.items(), strict=True):
        bars = axes.bar(range(len(PARTS)), values, color=colours, edgecolor=INK, width=0.65)
        axes.set_xticks(range(len(PARTS)), [part.replace(" ", "\n") for part in PARTS], fontsize=8)
        axes.set(ylabel=unit, ylim=(0, 1.15 * max(values)))
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        if axes is panels[0]:
            sizes = [f"{formats.num_bytes(part)[0] / 1e6:.1f} MB" for part in PARTS]
            axes.bar_label(bars, sizes, fontsize=8, color=INK, padding=2)
    figure.tight_layout()
    plt.close(figure)
    return figure


def draw_budgets(
    budgets: list[float], predicted: list[float | None], measured: Mapping[str, tuple[float, float]]
) -> Figure:
    """Predicted damage against megabytes, and measured points (megabytes, damage) by name."""
    figure, axes = plt.subplots(figsize=(8, 3.4), facecolor="white")
    known = [(size, value) for size, value in zip(budgets, predicted, strict=True) if value is not None]
    axes.step(*zip(*known, strict=True), where="post", color=COLOURS[0], linewidth=1.8, label="sum of the parts")
    for number, (name, (size, value)) in enumerate(measured.items()):
        axes.plot(size, value, "os^D"[number % 4], color=COLOURS[5], markersize=6)
        axes.annotate(name, (size, value), (6, 4), textcoords="offset points", fontsize=8, color=INK)
    axes.axhline(0, color=LINE, linewidth=1)
    axes.set(xlabel="MB of the linear layers", ylabel="mean KL, nats", ylim=(-0.004, None))
    axes.set_title("What a budget buys: predicted (line) and measured (marks)", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    plt.close(figure)
    return figure
