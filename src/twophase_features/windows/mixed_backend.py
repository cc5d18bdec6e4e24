"""Attention of a model whose layers are of different kinds: a backend for each kind, a plan for each group."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from twophase.attention.interface import AttentionBackend, AttentionBatch, AttentionSpec
from twophase.cache.kv_cache import LayerKV
from twophase.model.config import ModelConfig
from twophase_features.windows.layer_groups import group_layers


@final
class MixedBackend(AttentionBackend):
    """Hands each layer to the backend of its kind, with its group's block tables; its pages tell the group.

    Args:
        full: For the layers that see all keys.
        local: For the layers that see a window.
        sees_all: For each group, which of the two it is.
    """

    def __init__(self, full: AttentionBackend, local: AttentionBackend, sees_all: Sequence[bool]) -> None:
        self.name, self.max_decode_len = full.name, min(full.max_decode_len, local.max_decode_len)
        self.of_group = tuple(full if is_full else local for is_full in sees_all)

    def plan(self, batch: AttentionBatch) -> tuple[Any, ...]:
        return tuple(backend.plan(part) for backend, part in zip(self.of_group, batch.groups, strict=True))

    def write(
        self,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T H_kv D"],
        v: Float[Tensor, "T H_kv D"],
        cos: Float[Tensor, "P D/2"],
        sin: Float[Tensor, "P D/2"],
        kv: LayerKV,
        plan: Any,
    ) -> Float[Tensor, "T H D"]:
        return self.of_group[kv.group].write(q, k, v, cos, sin, kv, plan[kv.group])

    def attend(self, q: Float[Tensor, "T H D"], kv: LayerKV, plan: Any) -> Float[Tensor, "T H D"]:
        return self.of_group[kv.group].attend(q, kv, plan[kv.group])

    def rmsnorm(
        self, x: Float[Tensor, "T N"], residual: Float[Tensor, "T N"] | None, weight: Float[Tensor, "N"], eps: float
    ) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
        return self.of_group[0].rmsnorm(x, residual, weight, eps)

    def silu_mul(self, gate_up: Float[Tensor, "T two_I"]) -> Float[Tensor, "T two_I//2"]:
        return self.of_group[0].silu_mul(gate_up)


def mixed_backend(
    config: ModelConfig, spec: AttentionSpec, make: Callable[[AttentionSpec], AttentionBackend]
) -> MixedBackend:
    """The backend of a model with full and sliding layers; `spec` is that of the sliding ones."""
    return MixedBackend(make(replace(spec, window=None)), make(spec), group_layers(config.sees_all).sees_all)
