"""Paged attention by the Triton kernels: compiled on a GPU, interpreted on a CPU for learning and testing."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.attention.interface import AttentionBackend, AttentionBatch, AttentionSpec
from twophase.cache.kv_cache import LayerKV
from twophase_kernels.paged_decode import max_rows, paged_decode
from twophase_kernels.paged_prefill import paged_prefill
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write
from twophase_kernels.silu_mul import silu_mul


class Run(NamedTuple):
    """Neighbouring sequences of a batch, whose attention is one launch.

    Attributes:
        sequences, tokens: Which sequences and which tokens of the batch.
        cu_query_lens: Their cumulative query lengths, starting at 0 again; None: one token each.
        max_query_len: Their longest.
        is_long: Too long for the kernel that splits the keys.
    """

    sequences: slice
    tokens: slice
    cu_query_lens: Tensor | None
    max_query_len: int
    is_long: bool


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """The batch, and its attention launches."""

    batch: AttentionBatch
    runs: tuple[Run, ...]


class TritonBackend(AttentionBackend):
    """The Triton backend.

    A step has at most three attention launches per layer: all decodes; drafts to verify, with the short chunks that
    follow them; the other chunks. The first two launches split the keys of long contexts.
    """

    name = "triton"

    def __init__(self, spec: AttentionSpec, deterministic: bool = False) -> None:
        self.spec = spec
        self.deterministic = deterministic
        # Whether a short chunk gets the kernel that splits keys depends on the chunks before it, and the kernels sum in
        # different orders. Where results must not depend on the batch, no chunk is short.
        if not deterministic:
            self.max_decode_len = max(1, max_rows(spec.head_dim) * spec.num_kv_heads // spec.num_heads)

    def plan(self, batch: AttentionBatch) -> TritonPlan:
        lens = batch.query_lens_host
        is_long = [n > self.max_decode_len for n in lens]
        first_long = is_long.index(True) if True in is_long else len(lens)
        bounds = (0, batch.num_decodes, first_long, len(lens))
        return TritonPlan(batch, tuple(_run(batch, a, b, first_long) for a, b in pairwise(bounds) if a < b))

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
        batch = plan.batch
        # Tokens that pad a graph's verification of drafts belong to no sequence, and no kernel writes their rows.
        has_drafts = any(run.cu_query_lens is not None and not run.is_long for run in plan.runs)
        out = (torch.zeros if has_drafts else torch.empty)(q.shape, dtype=q.dtype, device=q.device)
        for sequences, tokens, cu_query_lens, max_query_len, is_long in plan.runs:
            splits: dict[str, Any] = {
                "max_seq_len": max(batch.seq_lens_host[sequences]),
                "deterministic": self.deterministic,
            }
            (paged_prefill if is_long else paged_decode)(
                q[tokens],
                kv.k,
                kv.v,
                batch.block_tables[sequences],
                batch.seq_lens[sequences],
                cu_query_lens,
                max_query_len=max_query_len,
                scale=self.spec.scale,
                k_scale=kv.k_scale,
                v_scale=kv.v_scale,
                window=self.spec.window,
                num_sinks=self.spec.num_sinks,
                out=out[tokens],
                **({} if is_long else splits),
            )
        return out

    def rmsnorm(
        self, x: Float[Tensor, "T N"], residual: Float[Tensor, "T N"] | None, weight: Float[Tensor, "N"], eps: float
    ) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
        return rmsnorm_residual(x, residual, weight, eps)

    def silu_mul(self, gate_up: Float[Tensor, "T two_I"]) -> Float[Tensor, "T two_I//2"]:
        return silu_mul(gate_up)


def _run(batch: AttentionBatch, first: int, end: int, first_long: int) -> Run:
    lens = batch.query_lens_host
    start, longest = sum(lens[:first]), max(lens[first:end])
    cu_query_lens = None if end <= batch.num_decodes else batch.cu_query_lens[first : end + 1] - start
    tokens = slice(start, start + sum(lens[first:end]))
    return Run(slice(first, end), tokens, cu_query_lens, longest, first >= first_long)
