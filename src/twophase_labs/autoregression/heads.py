"""SmolLM2 with other heads: a head map of one's own in the engine's attention, or key/value heads that are merged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.attention.interface import AttentionBackend, AttentionBatch, AttentionSpec
from twophase.attention.torch_backend import TorchBackend
from twophase.cache.kv_cache import LayerKV


class MappedHeads(AttentionBackend):
    """Paged attention in which query head h reads KV head `kv_heads[h]`.

    The engine's backend reads h // G. So the query heads are sorted by the KV head they ask for, run through it, and
    put back.

    Raises:
        ValueError: Unless every KV head is asked for by G query heads.
    """

    name = "mapped heads"

    def __init__(self, spec: AttentionSpec, block_size: int, kv_heads: Sequence[int]) -> None:
        group = spec.num_heads // spec.num_kv_heads
        if sorted(kv_heads) != [h // group for h in range(spec.num_heads)]:
            raise ValueError(f"each of {spec.num_kv_heads} KV heads serves {group} query heads; got {list(kv_heads)}")
        self._inner = TorchBackend(spec, block_size)
        self._order = torch.tensor(sorted(range(spec.num_heads), key=lambda h: kv_heads[h]))
        self._back = self._order.argsort()

    def plan(self, batch: AttentionBatch) -> Any:
        return self._inner.plan(batch)

    def write(self, q: Any, k: Any, v: Any, cos: Any, sin: Any, kv: LayerKV, plan: Any) -> Float[Tensor, "T H D"]:
        return self._inner.write(q, k, v, cos, sin, kv, plan)

    def attend(self, q: Float[Tensor, "T H D"], kv: LayerKV, plan: Any) -> Float[Tensor, "T H D"]:
        return self._inner.attend(q[:, self._order], kv, plan)[:, self._back]


@contextmanager
def merged_kv_heads(model: Any, num_layers: int) -> Iterator[None]:
    """For a while, the first `num_layers` layers of a transformers Llama have one key/value head: the mean of all.

    It is how a model is turned into one with multi-query attention (arXiv:2305.13245, section 2.1), before it is
    trained further; here it is not.
    """
    replaced: list[tuple[Any, Tensor]] = []
    for layer in model.model.layers[:num_layers]:
        for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            weight = projection.weight.data
            replaced.append((projection, weight))
            heads = weight.unflatten(0, (model.config.num_key_value_heads, -1))
            projection.weight.data = heads.mean(0, keepdim=True).expand_as(heads).flatten(0, 1)
    try:
        yield
    finally:
        for projection, weight in replaced:
            projection.weight.data = weight
