"""`twophase bench quality --sensitivity`: which layers break first when weights are quantised.

One part of the model at a time takes its quantised linear layers, all others keep their plain ones, and a text is read:
each layer, each kind of linear layer in all layers, the last layer that makes logits, and at last everything at once.
The divergence from the plain model's predictions is that part's damage. Small damages add up nearly as if they were
independent; where everything at once costs much more than the sum over the layers, they reinforce each other.

The quantised layers are those of the engine, of whatever scheme it opens. Both models are opened in the dtype of the
quantised one, so that what is compared differs in the weights' bits alone. In bfloat16 other weights also mean other
roundings of what is computed, in each part's figure anew: SmolLM2's layers cost 0.001 nats more each than in float32.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from twophase.core.errors import ConfigError
from twophase.llm import LLM
from twophase.model.weights import LayerWeights, ModelWeights
from twophase_tools.bench.machine import MachineRecord, record_machine
from twophase_tools.bench.perplexity import prose, step_logits
from twophase_tools.bench.quality import Variant, check_num_tokens, dtype_name, text_ids
from twophase_tools.bench.quality_drift import Drift, drift_between
from twophase_tools.bench.quality_grid import NOTE, was_rounded

NUM_TOKENS = 512  # by default: the plain model's logits are kept, 4 bytes for each token and word of the vocabulary
BAR_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Part:
    """What is quantised: of all linear layers, those of this layer and of this kind.

    Attributes:
        layer: Its number; None: all of them.
        kind: One of `KINDS`; None: all of them.
    """

    layer: int | None = None
    kind: str | None = None

    @property
    def name(self) -> str:
        if self.layer is None:
            return self.kind or "everything"
        return f"layer {self.layer}" + ("" if self.kind is None else f" {self.kind}")

    def holds(self, layer: int | None, kind: str) -> bool:
        """Whether the linear layer of this kind is in it; the head is in no layer."""
        return self.layer in (None, layer) and self.kind in (None, kind)


KINDS = ("qkv", "o", "gate_up", "down", "head")


@dataclass(frozen=True, slots=True)
class Damage:
    """What quantising one part alone does to the predictions."""

    part: str
    drift: Drift


@dataclass(frozen=True, slots=True)
class SensitivityReport:
    """A whole run; `layers` in order, `kinds` in that of `KINDS`.

    Attributes:
        was_rounded: Whether the plain weights, too, have the values of 4 bits (see `quality_grid`).
    """

    machine: MachineRecord
    model: str
    quantization: str
    dtype: str
    num_tokens: int
    was_rounded: bool
    layers: tuple[Damage, ...]
    kinds: tuple[Damage, ...]
    everything: Damage

    @property
    def worst_first(self) -> tuple[Damage, ...]:
        """The layers, by divergence."""
        return tuple(sorted(self.layers, key=lambda damage: -damage.drift.kl.mean))

    @property
    def sum_over_layers(self) -> float:
        """Of the mean divergences of the layers and the head, nats: what everything would cost if damages added up."""
        head = [damage for damage in self.kinds if damage.part == "head"]
        return sum(damage.drift.kl.mean for damage in (*self.layers, *head))

    def to_text(self) -> str:
        parts = (*self.layers, *self.kinds)
        most = max((damage.drift.kl.mean for damage in parts if damage.drift.kl.mean < math.inf), default=0.0)
        lines = [
            f"{self.quantization} in {self.dtype}, one part at a time: mean KL from the plain model in nats, +- 95 %;",
            "perplexity after over before; positions with the same top token",
        ]
        lines += [f"{_row(damage)}  {_bar(damage.drift.kl.mean, most)}".rstrip() for damage in parts]
        lines.append(_row(self.everything))
        first = ", ".join(damage.part for damage in self.worst_first[:3])
        return "\n".join(
            [
                *lines,
                f"first to break: {first}. One by one, the layers and the head add up to {self.sum_over_layers:.5f}; "
                f"all at once: {self.everything.drift.kl.mean:.5f}.",
                *([NOTE] if self.was_rounded else []),
                f"{self.model}, {self.num_tokens:,} tokens of text",
                self.machine.to_text(),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _row(damage: Damage) -> str:
    kl, ratio = damage.drift.kl, math.exp(min(damage.drift.log_ratio.mean, 700))
    return f"  {damage.part:<10} {kl.mean:.5f} +- {kl.margin:.5f}  x {ratio:.4f}  {damage.drift.top1.mean:7.2%}"


def _bar(value: float, most: float) -> str:
    """In proportion, as far as `most`, which takes the whole width; what is infinite takes it, too."""
    return "#" * round(BAR_WIDTH * min(1, value / most)) if most else ""


def bench_sensitivity(
    open_llm: Callable[[Variant], LLM],
    quantization: str,
    *,
    text: str | None = None,
    num_tokens: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> SensitivityReport:
    """Quantise each part of a model alone.

    Args:
        open_llm: As `bench_quality`'s.
        text: What is read; None: the prose that comes with this package.
        num_tokens: Of the text; None: `NUM_TOKENS`.

    Raises:
        ConfigError: Too few tokens to estimate anything, or more than the model or the pool can hold.
    """
    check_num_tokens(num_tokens)
    quantised = open_llm(Variant(quantization=quantization))
    plain = open_llm(Variant(dtype=dtype_name(quantised)))
    token_ids = text_ids(plain, text, prose(), num_tokens or NUM_TOKENS)
    weights = quantised.model.weights
    del quantised  # but for its weights
    say("the plain model")
    before = list(step_logits(plain, token_ids))

    def damage(part: Part) -> Damage:
        say(f"{quantization}: {part.name}")
        with replaced_weights(plain, mixed(plain.model.weights, weights, part)):
            return Damage(part.name, drift_between(before, step_logits(plain, token_ids), token_ids))

    return SensitivityReport(
        machine=record_machine(),
        model=str(plain.model_dir),
        quantization=quantization,
        dtype=dtype_name(plain),
        num_tokens=len(token_ids),
        was_rounded=was_rounded(plain.model.weights),
        layers=tuple(damage(Part(layer=number)) for number in range(len(weights.layers))),
        kinds=tuple(damage(Part(kind=kind)) for kind in KINDS),
        everything=damage(Part()),
    )


def mixed(plain: ModelWeights, quantised: ModelWeights, part: Part) -> ModelWeights:
    """The plain weights with one part's linear layers from the quantised ones.

    Raises:
        ConfigError: The two compute in different dtypes.
    """
    if plain.dtype != quantised.dtype:
        raise ConfigError(
            f"both models must compute in one dtype, got {plain.dtype} and {quantised.dtype}; set --dtype."
        )
    layers = zip(plain.layers, quantised.layers, strict=True)
    return replace(
        plain,
        layers=tuple(_mixed_layer(old, new, number, part) for number, (old, new) in enumerate(layers)),
        lm_head=(quantised if part.holds(None, "head") else plain).lm_head,
    )


def _mixed_layer(plain: LayerWeights, quantised: LayerWeights, number: int, part: Part) -> LayerWeights:
    def of(kind: str) -> Any:
        return quantised if part.holds(number, kind) else plain

    # Dense or of experts: both have these two. A router stays as it is.
    mlp: Any = plain.mlp
    mlp = replace(mlp, gate_up=of("gate_up").mlp.gate_up, down=of("down").mlp.down)
    return replace(plain, qkv=of("qkv").qkv, o=of("o").o, mlp=mlp)


@contextmanager
def replaced_weights(llm: LLM, weights: ModelWeights) -> Iterator[None]:
    """The model computes with these; with its own again at the end."""
    own = llm.model.weights
    llm.model.weights = weights
    try:
        yield
    finally:
        llm.model.weights = own
