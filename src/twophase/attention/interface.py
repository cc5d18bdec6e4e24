"""The interface between the model and the backend that computes its attention."""

import abc
import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from twophase.cache.kv_cache import LayerKV


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where each token of a step lives, for S sequences and T tokens in all.

    Sequence s owns tokens [cu_query_lens[s], cu_query_lens[s+1]) of the flat batch; they are the last `query_lens[s]`
    of its `seq_lens[s]` tokens. Sequences [0, num_decodes) have exactly one token each.

    Worked example, block size 4: a decode at position 6 (blocks 5, 2) and a fresh prompt of 3 tokens (block 7):
    positions [6, 0, 1, 2], slot_mapping [2*4+2, 28, 29, 30], cu_query_lens [0, 1, 4], seq_lens [7, 3], block_tables
    [[5, 2, ...], [7, ...]].

    Attributes:
        positions: Position of each token in its sequence.
        slot_mapping: Where its K and V go: block * block_size + offset; negative: nowhere (padding of a CUDA graph).
        seq_lens: Tokens of each sequence, this step's included.
        block_tables: Block ids, padded with 0 to a multiple of 16 columns. -1 stands for a block that was freed: no
            query of the batch sees its positions, and it must not be read.
        query_lens_host, seq_lens_host: The lengths as Python ints, so that no backend needs a device sync.
        groups: For a model with layers of different kinds, this batch with each group's block tables and slots; itself
            it has the first group's.
    """

    positions: Int[Tensor, "T"]
    slot_mapping: Int[Tensor, "T"]
    seq_lens: Int[Tensor, "S"]
    cu_query_lens: Int[Tensor, "S+1"]
    block_tables: Int[Tensor, "S W"]
    num_decodes: int
    query_lens_host: tuple[int, ...]
    seq_lens_host: tuple[int, ...]
    groups: tuple["AttentionBatch", ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Shape, scale and window of a model's attention; the same for all its layers.

    Attributes:
        num_heads, num_kv_heads: H and H_kv; query head h reads KV head h // (H // H_kv).
        scale: Factor on Q.K, as a rule 1 / sqrt(D).
        window: Sliding window: a query at position i sees keys at positions (i - window, i]; None sees all.
        num_sinks: Keys at positions [0, num_sinks) stay visible too (attention sinks, arXiv:2309.17453).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    num_sinks: int = 0


class AttentionBackend(abc.ABC):
    """Paged attention for one model on one device. Implementations are final.

    A step calls `plan` once, then for each layer `write` and `attend`. A backend with kernels for the layer's norms and
    gate also overrides `rmsnorm` and `silu_mul`. No method keeps state between steps.
    """

    name: str
    max_decode_len: int = 1  # tokens of one sequence that are computed like a decode: the newest, and drafts to verify

    @abc.abstractmethod
    def plan(self, batch: AttentionBatch) -> Any:
        """Gather indices, masks, launch shapes: shared by the step's layers, and passed to `write` and `attend`."""

    @abc.abstractmethod
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
        """Rotate q and k by their positions (RoPE, arXiv:2104.09864, half-split pairs) and write k, v into pages.

        `cos` and `sin` hold one row per position. Mutates `kv`; q and k may be overwritten. Returns the rotated q.
        """

    @abc.abstractmethod
    def attend(self, q: Float[Tensor, "T H D"], kv: LayerKV, plan: Any) -> Float[Tensor, "T H D"]:
        """Causal attention of each new token over its sequence's pages, this step's tokens included."""

    def rmsnorm(
        self, x: Float[Tensor, "T N"], residual: Float[Tensor, "T N"] | None, weight: Float[Tensor, "N"], eps: float
    ) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
        """(rmsnorm(x + residual) * weight, x + residual); without a residual (rmsnorm(x) * weight, x).

        The mean square is taken in fp32 (RMSNorm, arXiv:1910.07467). May overwrite its inputs.
        """
        if residual is not None:
            x = residual.add_(x)
        return rms_norm(x, weight, eps), x

    def silu_mul(self, gate_up: Float[Tensor, "T two_I"]) -> Float[Tensor, "T two_I//2"]:
        """silu(gate) * up, for gate and up side by side (SwiGLU, arXiv:2002.05202)."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def rms_norm(x: Float[Tensor, "*a N"], weight: Float[Tensor, "N"], eps: float) -> Float[Tensor, "*a N"]:
    """RMSNorm over the last dimension (arXiv:1910.07467), in fp32, rounded once at the end.

    The root of |x|^2 / N + eps as a hypotenuse, because each small operation counts in a decode step: against
    `F.rms_norm` a layer of one bf16 row takes 10 us and 14, 512 fp32 rows take 0.09 ms and 1.0.
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    rms = norm.mul_(x.shape[-1] ** -0.5).hypot_(_root(eps))
    return (x / rms).mul_(weight).to(x.dtype)


@functools.cache
def _root(eps: float) -> Float[Tensor, ""]:
    return torch.tensor(math.sqrt(eps), dtype=torch.float32)
