"""Random ragged batches over pages, and attention over them by loops that owe nothing to a kernel."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw

TABLE_WIDTH = 16  # as the engine pads it, with page 0


@dataclass
class RaggedBatch:
    """Prompt chunks of several sequences whose K and V are in pages already.

    Attributes:
        q: [T, H, D], drawn wide enough for a peaky softmax.
        k_cache, v_cache: [N, H_kv, page, D]; also the slots that belong to nobody hold numbers.
        block_tables, seq_lens, cu_query_lens: int32, as the engine gives them.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    cu_query_lens: Tensor
    scale: float = field(default=0.0)

    def __post_init__(self) -> None:
        self.scale = self.scale or 1 / math.sqrt(self.q.shape[-1])

    @property
    def tensors(self) -> dict[str, Tensor]:
        names = ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "cu_query_lens")
        return {name: getattr(self, name) for name in names}

    def owners(self) -> list[tuple[int, int]]:
        """(sequence, position) of each token of the batch."""
        bounds = self.cu_query_lens.tolist()
        return [
            (s, seq_len - (bounds[s + 1] - bounds[s]) + i)
            for s, seq_len in enumerate(self.seq_lens.tolist())
            for i in range(bounds[s + 1] - bounds[s])
        ]

    def slots(self, sequence: int) -> list[tuple[int, int]]:
        """(page, offset) of each of a sequence's tokens."""
        page_size = self.k_cache.shape[2]
        table = self.block_tables[sequence].tolist()
        return [(table[i // page_size], i % page_size) for i in range(int(self.seq_lens[sequence]))]


def ragged_batch(
    draw: Draw,
    query_lens: Sequence[int],
    cached: Sequence[int],
    *,
    heads: tuple[int, int] = (6, 2),
    head_dim: int = 16,
    page: int = 4,
    spare_pages: int = 3,
    spare_tokens: int = 0,
    table_width: int = TABLE_WIDTH,
) -> RaggedBatch:
    """`query_lens[s]` new tokens behind `cached[s]` older ones; `spare_tokens` rows of q that belong to no chunk."""
    seq_lens = [new + old for new, old in zip(query_lens, cached, strict=True)]
    num_pages = [-(-n // page) for n in seq_lens]
    pages = draw.permutation(sum(num_pages) + spare_pages).int()
    tables = torch.zeros(len(seq_lens), table_width, dtype=torch.int32)
    for s, own in enumerate(pages[: sum(num_pages)].split(num_pages)):
        tables[s, : len(own)] = own
    shape = (len(pages), heads[1], page, head_dim)
    return RaggedBatch(
        q=4 * draw.normal(sum(query_lens) + spare_tokens, heads[0], head_dim),
        k_cache=draw.normal(*shape),
        v_cache=draw.normal(*shape),
        block_tables=tables,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        cu_query_lens=torch.tensor([0, *query_lens]).cumsum(0).int(),
    )


def poison_unused(batch: RaggedBatch) -> None:
    """NaN in every slot that holds no token of these sequences."""
    used = torch.zeros(batch.k_cache.shape[0], batch.k_cache.shape[2], dtype=torch.bool)
    for s in range(len(batch.seq_lens)):
        for page, offset in batch.slots(s):
            used[page, offset] = True
    for cache in (batch.k_cache, batch.v_cache):
        cache.masked_fill_(~used[:, None, :, None], float("nan"))


def paged_attention(batch: RaggedBatch) -> tuple[Tensor, Tensor]:
    """(out [T, H, D], LSE base 2 [T, H]), a token and a head at a time in float64; NaN for tokens of nobody."""
    q = batch.q.double()
    num_heads, group = q.shape[1], q.shape[1] // batch.k_cache.shape[1]
    out, lse = torch.full_like(q, math.nan), torch.full(q.shape[:2], math.nan, dtype=torch.float64)
    for token, (s, position) in enumerate(batch.owners()):
        pages, offsets = (torch.tensor(x) for x in zip(*batch.slots(s)[: position + 1], strict=True))
        for head in range(num_heads):
            keys = batch.k_cache[pages, head // group, offsets].double()
            values = batch.v_cache[pages, head // group, offsets].double()
            scores = keys @ q[token, head] * batch.scale
            out[token, head] = scores.softmax(0) @ values
            lse[token, head] = scores.logsumexp(0) / math.log(2)
    return out.float(), lse.float()
