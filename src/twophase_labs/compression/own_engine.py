"""The engine with weights that the learner's own functions rounded: SmolLM2, its four kinds of linear layers.

The engine multiplies queries, keys and values by one matrix, and gate and up by one, so that a layer has four.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from twophase import LLM, SamplingParams
from twophase.model.linear import Linear, make_linear
from twophase.model.weights import ModelWeights
from twophase_features.quantization.linear import make_quantized_linear
from twophase_features.quantization.weight import QuantizedWeight
from twophase_labs.compression.changed_model import linears, recorded_inputs
from twophase_labs.compression.step_bytes import open_engine
from twophase_tools.bench.perplexity import more_prose, prose, step_logits
from twophase_tools.bench.quality_drift import Drift, drift_between
from twophase_tools.bench.quality_probes import ONE_DIGIT, add_up
from twophase_tools.bench.quality_verdict import FOUR_BITS, Verdict, drift_verdicts
from twophase_tools.bench.sensitivity import replaced_weights

KINDS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
NUM_LAYERS = 30
NUM_CALIBRATION = 128  # tokens that AWQ looks at
PLACES = tuple((layer, kind) for layer in range(NUM_LAYERS) for kind in KINDS)

Place = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix as a learner's `quantize` returned it; its columns were multiplied by `factors` before, if there are."""

    weight: QuantizedWeight
    factors: Float[Tensor, "I"] | None = None

    @property
    def stored_bytes(self) -> float:
        """Codes of their bits, and 16 bits for each scale, minimum and factor."""
        num_values = sum(0 if each is None else each.numel() for each in (self.weight.minima, self.factors))
        return self.weight.codes.numel() * self.weight.bits / 8 + 2 * (self.weight.scales.numel() + num_values)

    def plain(self) -> Float[Tensor, "O I"]:
        weight = self.weight.dequantize()
        return weight if self.factors is None else weight / self.factors

    def layer(self, dtype: torch.dtype) -> Linear:
        if dtype == torch.float32:
            return make_linear(self.plain())
        layer = make_quantized_linear(self.weight, None, dtype)
        return layer if self.factors is None else DividedInput(layer, self.factors.to(dtype))


@dataclass(frozen=True, slots=True)
class DividedInput:
    """A layer whose columns were multiplied by factors: what goes in is divided by them first."""

    layer: Linear
    factors: Float[Tensor, "I"]

    @property
    def num_outputs(self) -> int:
        return self.layer.num_outputs

    @property
    def num_bytes(self) -> int:
        return self.layer.num_bytes + self.factors.nbytes

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        return self.layer(x / self.factors)


def matrix(place: Place) -> Float[Tensor, "O I"]:
    """A matrix of the engine: SmolLM2's own, one under the other."""
    layer, kind = place
    return torch.cat([linears()[f"{layer}.{name}"].weight.detach() for name in KINDS[kind]])


def inputs_of(place: Place) -> Float[Tensor, "T I"]:
    """What this matrix is given for the calibration text."""
    layer, kind = place
    return recorded_inputs()[f"{layer}.{KINDS[kind][0]}"]


def rounded(
    quantize: Callable[..., Any], place: Place, bits: int, group_size: int, factors: Tensor | None = None
) -> Rounded:
    """By the learner's function."""
    weight = matrix(place)
    codes, scales, minima = quantize(weight if factors is None else weight * factors, bits, group_size)
    return Rounded(QuantizedWeight(codes.to(torch.uint8), scales, minima, bits), factors)


def engine(dtype: str = "float32") -> LLM:
    """SmolLM2 on the CPU, where the learner's matrices are; see `step_bytes.open_engine`."""
    return open_engine(dtype)


@dataclass(frozen=True, eq=False)
class OwnModel:
    """SmolLM2 with some of its matrices rounded; every other one is the engine's."""

    matrices: Mapping[Place, Rounded]

    @property
    def megabytes(self) -> float:
        """Of the linear layers, stored in their bits; of a matrix that is not among `matrices`, in 16."""
        own = self.matrices
        return sum(own[place].stored_bytes if place in own else 2 * matrix(place).numel() for place in PLACES) / 1e6

    def weights(self, llm: LLM) -> ModelWeights:
        """For this engine of `engine()`."""
        return self._in_bfloat16 if llm is engine("bfloat16") else self._as(torch.float32)

    @cached_property
    def _in_bfloat16(self) -> ModelWeights:
        return self._as(torch.bfloat16)

    def _as(self, dtype: torch.dtype) -> ModelWeights:
        layers = {place: each.layer(dtype) for place, each in self.matrices.items()}
        return _with(engine(str(dtype).removeprefix("torch.")).model.weights, layers)


def _with(weights: ModelWeights, own: Mapping[Place, Linear]) -> ModelWeights:
    layers = []
    for number, layer in enumerate(weights.layers):
        new = {kind: own[number, kind] for kind in KINDS if (number, kind) in own}
        mlp: Any = layer.mlp
        mlp = replace(mlp, gate_up=new.get("gate_up", mlp.gate_up), down=new.get("down", mlp.down))
        layers.append(replace(layer, qkv=new.get("qkv", layer.qkv), o=new.get("o", layer.o), mlp=mlp))
    return replace(weights, layers=tuple(layers))


@cache
def text_ids(num_tokens: int, is_calibration: bool = False) -> tuple[int, ...]:
    """The beginning of the text on which quality is measured; or what follows in the other one the tokens that AWQ
    looks at."""
    tokenizer = engine().tokenizer
    assert tokenizer is not None
    if is_calibration:
        return tuple(tokenizer.encode(more_prose())[NUM_CALIBRATION:][:num_tokens])
    return tuple(tokenizer.encode(prose())[:num_tokens])


@cache
def logits_before(num_tokens: int, is_calibration: bool = False) -> Sequence[Float[Tensor, "L V"]]:
    """Of SmolLM2 as it is, in float32."""
    return tuple(step_logits(engine(), text_ids(num_tokens, is_calibration)))


def in_groups(
    quantize: Callable[..., Any], bits: int, factors: Mapping[Place, Tensor] | None = None, group_size: int = 64
) -> OwnModel:
    """Every matrix in so many bits by the learner's function; columns are multiplied by `factors` before."""
    factors = factors or {}
    return OwnModel({place: rounded(quantize, place, bits, group_size, factors.get(place)) for place in PLACES})


def all_factors(awq: Callable[..., Tensor], bits: int, group_size: int, num_steps: int) -> dict[Place, Tensor]:
    """Those that the learner's `awq` finds for each matrix, from the beginning of the calibration text."""
    return {
        place: awq(matrix(place), inputs_of(place)[:NUM_CALIBRATION].clone(), bits, group_size, num_steps)
        for place in PLACES
    }


def perplexity_ratio(own: OwnModel, num_tokens: int = 512) -> float:
    """After over before, in float32."""
    return math.exp(drift(own, num_tokens).log_ratio.mean)


def drift(own: OwnModel, num_tokens: int, dtype: str = "float32", is_calibration: bool = False) -> Drift:
    """From SmolLM2 as it is, in float32, to the engine with these matrices."""
    llm, token_ids = engine(dtype), text_ids(num_tokens, is_calibration)
    before = logits_before(num_tokens, is_calibration)  # not inside: the engine may be the same
    with replaced_weights(llm, own.weights(llm)):
        return drift_between(before, step_logits(llm, token_ids), token_ids)


def gate_of(own: OwnModel, num_tokens: int = 512) -> list[Verdict]:
    """What the engine's gate says of predictions with these matrices in bfloat16, within its bounds for 4 bits."""
    return list(drift_verdicts(drift(own, num_tokens, "bfloat16"), FOUR_BITS))


PROMPT = "The lighthouse keeper climbed the stairs and"
NUM_NEW, NUM_ROUNDS = 16, 2


@contextmanager
def running(own: OwnModel | None) -> Iterator[LLM]:
    """The engine with these matrices, in bfloat16; None: SmolLM2 as it is, in float32."""
    if own is None:
        yield engine()
        return
    llm = engine("bfloat16")
    with replaced_weights(llm, own.weights(llm)):
        llm.scheduler.cache.reset_prefix_cache()  # other weights computed what is in it
        yield llm


def tokens_per_s(variants: Mapping[str, OwnModel | None]) -> tuple[dict[str, float], dict[str, str]]:
    """Of one stream, the best of `NUM_ROUNDS` in turns, and what it wrote after `PROMPT`; see `running`."""
    best, wrote = dict.fromkeys(variants, 0.0), {}
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    for _ in range(NUM_ROUNDS):
        for name, own in variants.items():
            with running(own) as llm:
                start_s = time.perf_counter()
                (output,) = llm.generate([PROMPT], params, use_tqdm=False)
                best[name] = max(best[name], NUM_NEW / (time.perf_counter() - start_s))
                wrote[name] = output.outputs[0].text
    return best, wrote


def sums_right(own: OwnModel | None) -> str:
    """One of the gate's probes: how many one-digit sums are right; see `running`."""
    with running(own) as llm:
        outcomes = add_up(llm, ONE_DIGIT)
    return f"{sum(each.passed for each in outcomes)} of {len(outcomes)} one-digit sums"
