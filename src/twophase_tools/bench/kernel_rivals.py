"""torch's attention: SDPA by each of its backends, and FlexAttention.

Both get K and V contiguous, copied before the clock starts. Neither takes sequences of unequal lengths as they are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from twophase_tools.bench.kernel_variants import MakeVariant, Variant, compiled

SDPA_BACKENDS = {
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA cudnn": SDPBackend.CUDNN_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
    "SDPA math": SDPBackend.MATH,
}


def attention_rivals(
    q: Float[Tensor, "B H L D"],
    keys: Float[Tensor, "B H_kv S D"],
    values: Float[Tensor, "B H_kv S D"],
    scale: float,
    *,
    may_compile: bool,
) -> dict[str, MakeVariant]:
    """Name -> contender, for the last L tokens of each of B sequences of S tokens."""
    inputs = q, keys, values, scale
    rivals: dict[str, MakeVariant] = {name: partial(sdpa, *inputs, backend) for name, backend in SDPA_BACKENDS.items()}
    return rivals | {"FlexAttention": partial(flex, *inputs, may_compile)}


def sdpa(q: Tensor, keys: Tensor, values: Tensor, scale: float, backend: SDPBackend) -> Variant:
    num_queries, num_keys = q.shape[2], keys.shape[2]
    options: dict[str, Any] = {"scale": scale, "enable_gqa": True, "is_causal": 1 < num_queries == num_keys}
    if 1 < num_queries < num_keys:  # a mask, which not every backend takes
        every = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device)
        options["attn_mask"] = every.tril(num_keys - num_queries)

    def call() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, keys, values, **options)

    return Variant(call, packed)


def flex(q: Tensor, keys: Tensor, values: Tensor, scale: float, may_compile: bool) -> Variant:
    """A block mask spares it the blocks that causality hides."""
    num_queries, num_keys = q.shape[2], keys.shape[2]
    # A lambda: torch counts the arguments of what it gets, and the tests' type checker wraps functions.
    causal = lambda sequence, head, query, key: query + (num_keys - num_queries) >= key  # noqa: E731
    mask = None
    if num_queries > 1:
        mask = create_block_mask(causal, None, None, num_queries, num_keys, device=str(q.device))
    attend: Callable[[], Any] = lambda: flex_attention(  # noqa: E731
        q, keys, values, block_mask=mask, scale=scale, enable_gqa=True
    )
    return Variant(compiled(attend, dynamic=False) if may_compile else attend, packed)


def packed(out: Float[Tensor, "B H L D"]) -> tuple[Float[Tensor, "T H D"], ...]:
    """As ours: one sequence after another."""
    return (out.transpose(1, 2).flatten(0, 1),)
