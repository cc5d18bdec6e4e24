"""torch's attention on our batches: SDPA by each of its backends, and FlexAttention.

Each gets K and V contiguous, copied before the clock starts. None takes sequences of unequal lengths: they get those
padded, with a mask, and their names say so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
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


@dataclass(frozen=True)
class AttentionBatch:
    """A batch of chunks: the last query_lens[s] tokens of sequence s attend, causally, to its seq_lens[s] tokens.

    Attributes:
        q: [T, H, D], the chunks one after another.
        keys, values: [B, H_kv, S, D] padded to the longest sequence in whole pages. Slots after a sequence's end hold
            noise.
        k_cache, v_cache: The same in scattered pages, [N, H_kv, page, D].
        block_tables: int32 [B, W].
        scale: Factor on Q.K.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    seq_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    scale: float

    @property
    def is_even(self) -> bool:
        """Whether nothing is padded."""
        return {*self.seq_lens} == {self.keys.shape[2]} and len({*self.query_lens}) == 1

    @property
    def is_whole_prompts(self) -> bool:
        return self.is_even and self.query_lens == self.seq_lens

    @property
    def needs_mask(self) -> bool:
        """Neither single tokens that see all keys nor whole prompts."""
        return not (self.is_even and set(self.query_lens) == {1}) and not self.is_whole_prompts

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.q.device)

    @cached_property
    def lengths(self) -> Tensor:
        return self.ints(list(self.seq_lens))

    @cached_property
    def cu_query_lens(self) -> Tensor:
        return self.ints([0, *self.query_lens]).cumsum(0, dtype=torch.int32)

    @cached_property
    def context_lens(self) -> Tensor:
        """int32 [B]: tokens before each chunk."""
        return self.lengths - self.ints(list(self.query_lens))

    @cached_property
    def is_query(self) -> Tensor:
        """bool [B, L]: where padded chunks hold tokens."""
        longest = torch.arange(max(self.query_lens), device=self.q.device)
        return longest < self.ints(list(self.query_lens))[:, None]

    @cached_property
    def padded_q(self) -> Tensor:
        """[B, H, L, D]."""
        padded = self.q.new_zeros(*self.is_query.shape, *self.q.shape[1:])
        padded[self.is_query] = self.q
        return padded.transpose(1, 2).contiguous()

    def packed(self, out: Tensor) -> tuple[Tensor, ...]:
        """[B, H, L, D] as [T, H, D]."""
        return (out.transpose(1, 2)[self.is_query],)


def attention_rivals(batch: AttentionBatch, *, may_compile: bool) -> dict[str, MakeVariant]:
    """Name -> contender. A name owns up to padding, and to a mask for what others know."""
    padded, mask = ("" if batch.is_even else ", padded"), (", mask" if batch.needs_mask else "")
    rivals: dict[str, MakeVariant] = {
        name + padded + mask: partial(sdpa, batch, backend) for name, backend in SDPA_BACKENDS.items()
    }
    return rivals | {"FlexAttention" + padded: partial(flex, batch, may_compile)}


def sdpa(batch: AttentionBatch, backend: SDPBackend) -> Variant:
    q, mask = batch.padded_q, None
    if batch.needs_mask:
        queries, keys = (torch.arange(n, device=batch.q.device) for n in (q.shape[2], batch.keys.shape[2]))
        mask = (queries[:, None] + batch.context_lens[:, None, None] >= keys)[:, None]  # [B, 1, L, S]
    options: dict[str, Any] = {"attn_mask": mask, "is_causal": batch.is_whole_prompts, "scale": batch.scale}

    def call() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, batch.keys, batch.values, **options, enable_gqa=True)

    return Variant(call, batch.packed)


def flex(batch: AttentionBatch, may_compile: bool) -> Variant:
    """torch's FlexAttention; a block mask spares it the blocks that padding and causality hide."""
    q, keys, values, context_lens = batch.padded_q, batch.keys, batch.values, batch.context_lens
    # A lambda: torch counts the arguments of what it gets, and the tests' type checker wraps functions.
    causal = lambda sequence, head, query, key: query + context_lens[sequence] >= key  # noqa: E731
    whole_prompts = lambda sequence, head, query, key: query >= key  # noqa: E731
    size = q.shape[2], keys.shape[2]
    mask = None
    if batch.is_whole_prompts:
        mask = create_block_mask(whole_prompts, None, None, *size, device=str(q.device))
    elif batch.needs_mask:
        mask = create_block_mask(causal, len(q), None, *size, device=str(q.device))
    attend: Callable[[], Any] = lambda: flex_attention(  # noqa: E731
        q, keys, values, block_mask=mask, scale=batch.scale, enable_gqa=True
    )
    return Variant(compiled(attend, dynamic=False) if may_compile else attend, batch.packed)
