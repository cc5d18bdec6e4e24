"""Paged attention by the Triton kernels: compiled on a GPU, interpreted on a CPU for learning and testing."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.cache.kv_cache import LayerKV
from twophase.core.batch import AttentionBatch
from twophase_kernels.paged_decode import paged_decode
from twophase_kernels.paged_prefill import paged_prefill
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write
from twophase_kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """The batch, and its prefill part as a ragged batch of its own: its cumulative lengths start at 0 again."""

    batch: AttentionBatch
    prefill_cu_query_lens: Tensor | None
    max_prefill_len: int


class TritonBackend(AttentionBackend):
    """The Triton backend. A step is at most two attention launches per layer: all decodes, all prefill chunks."""

    name = "triton"

    def __init__(self, spec: AttentionSpec, deterministic: bool = False) -> None:
        self.spec = spec
        self.deterministic = deterministic

    def plan(self, batch: AttentionBatch) -> TritonPlan:
        num_decodes = batch.num_decodes
        if num_decodes == len(batch.query_lens_host):
            return TritonPlan(batch, None, 0)
        cu_query_lens = batch.cu_query_lens[num_decodes:] - num_decodes
        return TritonPlan(batch, cu_query_lens, max(batch.query_lens_host[num_decodes:]))

    def write(
        self,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T H_kv D"],
        v: Float[Tensor, "T H_kv D"],
        cos: Float[Tensor, "P D/2"],
        sin: Float[Tensor, "P D/2"],
        kv: LayerKV,
        plan: TritonPlan,
    ) -> Float[Tensor, "T H D"]:
        batch = plan.batch
        return rope_kv_write(q, k, v, cos, sin, batch.positions, batch.slot_mapping, kv.k, kv.v, kv.k_scale, kv.v_scale)

    def attend(self, q: Float[Tensor, "T H D"], kv: LayerKV, plan: TritonPlan) -> Float[Tensor, "T H D"]:
        batch, n = plan.batch, plan.batch.num_decodes
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        options = {
            "scale": self.spec.scale,
            "k_scale": kv.k_scale,
            "v_scale": kv.v_scale,
            "window": self.spec.window,
            "num_sinks": self.spec.num_sinks,
        }
        if n:
            paged_decode(
                q[:n],
                kv.k,
                kv.v,
                batch.block_tables[:n],
                batch.seq_lens[:n],
                max_seq_len=max(batch.seq_lens_host[:n]),
                deterministic=self.deterministic,
                out=out[:n],
                **options,
            )
        if plan.prefill_cu_query_lens is not None:
            paged_prefill(
                q[n:],
                kv.k,
                kv.v,
                batch.block_tables[n:],
                batch.seq_lens[n:],
                plan.prefill_cu_query_lens,
                max_query_len=plan.max_prefill_len,
                out=out[n:],
                **options,
            )
        return out

    def rmsnorm(
        self, x: Float[Tensor, "T N"], residual: Float[Tensor, "T N"] | None, weight: Float[Tensor, "N"], eps: float
    ) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
        return rmsnorm_residual(x, residual, weight, eps)

    def silu_mul(self, gate_up: Float[Tensor, "T two_I"]) -> Float[Tensor, "T two_I//2"]:
        return silu_mul(gate_up)
