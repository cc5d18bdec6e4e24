"""Pages to attend over: a pool in which sequences of any length have random pages, and a query each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class PagedInputs:
    """What one layer's decode attention gets; fields in the order of its arguments."""

    q: Float[Tensor, "B H D"]
    k_cache: Float[Tensor, "N H_kv PAGE D"]
    v_cache: Float[Tensor, "N H_kv PAGE D"]
    block_tables: Int[Tensor, "B W"]
    seq_lens: Int[Tensor, " B"]
    scale: float

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.seq_lens, self.scale


def random_pages(
    lengths: Sequence[int],
    *,
    page: int = 4,
    num_kv_heads: int = 2,
    group: int = 3,
    head_dim: int = 32,
    seed: int = 0,
) -> PagedInputs:
    """Random K and V everywhere, pages by lot, block tables padded with 0. Queries are large: a peaky softmax."""
    generator = torch.Generator().manual_seed(seed)
    num_pages = [-(-length // page) for length in lengths]
    num_blocks = sum(num_pages) + 1
    order = torch.randperm(num_blocks, generator=generator)
    tables = torch.zeros(len(lengths), max(num_pages) + 1, dtype=torch.int32)
    start = 0
    for row, count in enumerate(num_pages):
        tables[row, :count] = order[start : start + count]
        start += count
    shape = (num_blocks, num_kv_heads, page, head_dim)
    k, v = (torch.randn(shape, generator=generator) for _ in range(2))
    q = 4 * torch.randn(len(lengths), num_kv_heads * group, head_dim, generator=generator)
    seq_lens = torch.tensor(list(lengths), dtype=torch.int32)
    return PagedInputs(q, k, v, tables, seq_lens, head_dim**-0.5)


@dataclass(frozen=True)
class InARow:
    """The same attention over K and V that lie in a row; the sequences are equally long."""

    q: Float[Tensor, "B H 1 D"]
    k: Float[Tensor, "B H_kv S D"]
    v: Float[Tensor, "B H_kv S D"]
    scale: float

    @property
    def num_bytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def attend(self) -> Float[Tensor, "B H 1 D"]:
        grouped = self.q.unflatten(1, (self.k.shape[1], -1))[:, :, :, 0]
        return (grouped @ self.k.mT * self.scale).softmax(-1) @ self.v


def in_a_row(inputs: PagedInputs) -> InARow:
    """K and V taken out of their pages."""
    page = inputs.k_cache.shape[2]
    num_pages = int(inputs.seq_lens[0]) // page
    k, v = (
        cache[inputs.block_tables[:, :num_pages]].transpose(1, 2).flatten(2, 3).contiguous()
        for cache in (inputs.k_cache, inputs.v_cache)
    )
    return InARow(inputs.q[:, :, None], k, v, inputs.scale)
