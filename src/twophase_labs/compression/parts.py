"""SmolLM2's linear layers in eight parts, each kind in each half of the depth: what fewer bits of one part cost."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from matplotlib.figure import Figure

from twophase_labs.compression.changed_model import KINDS, NUM_LAYERS, PLACES, Place
from twophase_labs.compression.own_engine import OwnModel, in_groups
from twophase_labs.compression.quality import drift, stored_bytes
from twophase_labs.kit.draw import done, one_axes
from twophase_tools.colours import COLOURS, INK

NUM_TOKENS = 256


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

    def num_bytes(self, part: str) -> tuple[float, float]:
        """Of a part in 4 and in 8 bits."""
        places = [place for place in PLACES if name_of(place) == part]
        in_four, in_eight = (
            sum(stored_bytes(own.matrices[place]) for place in places) for own in (self.four, self.eight)
        )
        return in_four, in_eight

    def worth(self, part: str) -> float:
        """Nats that this part in 8 bits, instead of 4, avoids for each megabyte more."""
        in_four, in_eight = self.num_bytes(part)
        return self.damage[part] / (in_eight - in_four) * 1e6

    def mixed(self, in_eight: Collection[str]) -> OwnModel:
        """The model with these parts in 8 bits, all others in 4."""
        return OwnModel(
            {place: (self.eight if name_of(place) in in_eight else self.four).matrices[place] for place in PLACES}
        )


def own_formats(four: OwnModel, quantize: Callable[..., Any]) -> Formats:
    """The model in 4 bits, and in 8 bits to nearest by the learner's function."""
    eight = in_groups(quantize, 8)
    alone = {part: OwnModel({p: each for p, each in four.matrices.items() if name_of(p) == part}) for part in PARTS}
    return Formats(four, eight, {part: measured_kl(model) for part, model in alone.items()})


@cache
def measured_kl(own: OwnModel) -> float:
    """Mean KL in nats of the engine with these matrices from SmolLM2 as it is, both in float32; measured once.

    On the calibration text: what is chosen by it will be judged on another one.
    """
    return drift(own, NUM_TOKENS, is_calibration=True).kl.mean


def draw_parts(formats: Formats) -> Figure:
    """What each part costs in 4 bits, the costliest first, and its size then."""
    figure, axes = one_axes(8.6, 3.2)
    parts = sorted(PARTS, key=lambda part: -formats.damage[part])
    bars = axes.bar(
        range(len(parts)), [formats.damage[part] for part in parts], edgecolor=INK, width=0.65,
        color=[COLOURS[1] if "late" in part else COLOURS[4] for part in parts],
    )  # fmt: skip
    axes.bar_label(
        bars, [f"{formats.num_bytes(part)[0] / 1e6:.1f} MB" for part in parts], fontsize=8, color=INK, padding=2
    )
    axes.set_xticks(range(len(parts)), [part.replace(" ", "\n") for part in parts], fontsize=9)
    axes.set(ylabel="mean KL, nats", ylim=(0, 1.15 * max(formats.damage.values())))
    axes.set_title("One part in 4 bits, all others as they are", loc="left", fontsize=11)
    return done(figure)
