"""The engine with weights that the learner's own functions rounded: SmolLM2, each matrix behind the door `Linear`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from twophase import LLM
from twophase.model.linear import Linear
from twophase.model.weights import ModelWeights
from twophase_features.quantization.linear import make_quantized_linear
from twophase_features.quantization.weight import QuantizedWeight
from twophase_labs.compression.changed_model import KINDS, PLACES, Place, matrix
from twophase_labs.compression.step_bytes import open_engine
from twophase_tools.bench.quality_drift import replaced_weights


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix as a learner's `quantize` returned it; its columns were multiplied by `factors` before, if there are."""

    weight: QuantizedWeight
    factors: Float[Tensor, "I"] | None = None

    def layer(self, dtype: torch.dtype) -> Linear:
        layer = make_quantized_linear(self.weight, None, dtype)
        if self.factors is None:
            return layer
        factors = self.factors.to(dtype)
        return lambda x: layer(x / factors)


def rounded(
    quantize: Callable[..., Any], place: Place, bits: int, group_size: int, factors: Tensor | None = None
) -> Rounded:
    """By the learner's function."""
    weight = matrix(place)
    codes, scales, minima = quantize(weight if factors is None else weight * factors, bits, group_size)
    return Rounded(QuantizedWeight(codes.to(torch.uint8), scales, minima, bits), factors)


@dataclass(frozen=True, eq=False)
class OwnModel:
    """SmolLM2 with some of its matrices rounded; every other one is the engine's."""

    matrices: Mapping[Place, Rounded]

    def weights(self, dtype: str) -> ModelWeights:
        own, plain, layers = self.matrices, open_engine(dtype).model.weights, []
        for number, layer in enumerate(plain.layers):
            new = {kind: own[number, kind].layer(plain.dtype) for kind in KINDS if (number, kind) in own}
            mlp: Any = layer.mlp
            mlp = replace(mlp, **{name: new.pop(name) for name in ("gate_up", "down") if name in new})
            layers.append(replace(layer, **new, mlp=mlp))
        return replace(plain, layers=tuple(layers))

    @cached_property
    def in_bfloat16(self) -> ModelWeights:
        return self.weights("bfloat16")


def in_groups(
    quantize: Callable[..., Any], bits: int, factors: Mapping[Place, Tensor] | None = None, group_size: int = 64
) -> OwnModel:
    """Every matrix in so many bits by the learner's function; columns are multiplied by `factors` before."""
    factors = factors or {}
    return OwnModel({place: rounded(quantize, place, bits, group_size, factors.get(place)) for place in PLACES})


@contextmanager
def running(own: OwnModel | None, dtype: str = "bfloat16") -> Iterator[LLM]:
    """The engine with these matrices; None: SmolLM2 as it is, in float32."""
    llm = open_engine("float32" if own is None else dtype)
    own_weights = own and (own.in_bfloat16 if dtype == "bfloat16" else own.weights(dtype))
    with replaced_weights(llm, own_weights or llm.model.weights):
        llm.scheduler.cache.reset_prefix_cache()  # other weights computed its K and V
        yield llm
