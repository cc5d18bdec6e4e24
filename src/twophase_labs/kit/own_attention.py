"""A learner's attention in the engine."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.attention.interface import AttentionBackend, AttentionBatch, AttentionSpec
from twophase.attention.torch_backend import TorchBackend, rotate
from twophase.cache.kv_cache import LayerKV
from twophase.core.errors import ConfigError


@dataclass(frozen=True)
class OwnPlan:
    """The step as the torch backend plans it, and the batch that a learner's functions get their arguments from."""

    batch: AttentionBatch
    torch_plan: Any
    prefill_cu_query_lens: Tensor


@final
class OwnAttention(AttentionBackend):
    """The torch backend, with a learner's functions in place of some of its parts.

    Args:
        write: (k [T, H_kv, D], v, k_cache, v_cache, slot_mapping [T]) -> None; k is rotated already.
        prefill: (q [T, H, D], k_cache, v_cache, block_tables [S, W], seq_lens [S], cu_query_lens [S+1], scale)
            -> [T, H, D], for all prefill chunks of a step; their K and V are in the pages already.
        decode: (q [B, H, D], k_cache, v_cache, block_tables [B, W], seq_lens [B], scale) -> [B, H, D].

    Attributes:
        num_calls: How often each part was called, to show that it was the learner's code that ran.

    Raises:
        ConfigError: The model has a sliding window, which these signatures cannot express.
    """

    name = "own"

    def __init__(
        self,
        spec: AttentionSpec,
        block_size: int,
        *,
        write: Callable[..., None] | None = None,
        prefill: Callable[..., Tensor] | None = None,
        decode: Callable[..., Tensor] | None = None,
    ) -> None:
        if spec.window is not None:
            raise ConfigError(f"A learner's attention sees all keys; this model has a window of {spec.window}.")
        self.spec = spec
        self.num_calls: Counter[str] = Counter()
        self._torch = TorchBackend(spec, block_size)
        self._write, self._prefill, self._decode = write, prefill, decode

    def plan(self, batch: AttentionBatch) -> OwnPlan:
        return OwnPlan(batch, self._torch.plan(batch), batch.cu_query_lens[batch.num_decodes :] - batch.num_decodes)

    def write(
        self,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T H_kv D"],
        v: Float[Tensor, "T H_kv D"],
        cos: Float[Tensor, "P D/2"],
        sin: Float[Tensor, "P D/2"],
        kv: LayerKV,
        plan: OwnPlan,
    ) -> Float[Tensor, "T H D"]:
        if self._write is None:
            return self._torch.write(q, k, v, cos, sin, kv, plan.torch_plan)
        at = plan.batch.positions.long()
        cos, sin = cos[at].to(q.dtype), sin[at].to(q.dtype)
        rotation = torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]
        self.num_calls["write"] += 1
        self._write(rotate(k, *rotation).contiguous(), v.contiguous(), kv.k, kv.v, plan.batch.slot_mapping)
        return rotate(q, *rotation)

    def attend(self, q: Float[Tensor, "T H D"], kv: LayerKV, plan: OwnPlan) -> Float[Tensor, "T H D"]:
        n, batch = plan.batch.num_decodes, plan.batch
        has_prefills = n < len(batch.query_lens_host)
        need_torch = (n and self._decode is None) or (has_prefills and self._prefill is None)
        out = self._torch.attend(q, kv, plan.torch_plan) if need_torch else torch.empty_like(q)
        if n and self._decode is not None:
            self.num_calls["decode"] += 1
            tables, lens = batch.block_tables[:n], batch.seq_lens[:n]
            out[:n] = self._decode(q[:n].contiguous(), kv.k, kv.v, tables, lens, self.spec.scale)
        if has_prefills and self._prefill is not None:
            self.num_calls["prefill"] += 1
            tables, lens = batch.block_tables[n:], batch.seq_lens[n:]
            args = (tables, lens, plan.prefill_cu_query_lens, self.spec.scale)
            out[n:] = self._prefill(q[n:].contiguous(), kv.k, kv.v, *args)
        return out
