"""The access map of a prefill kernel: batches whose values are one-hot, so that the output is the weights.

Columns are the slots of the pool, KV head by KV head: first the pages of sequence A in order, then B's, ..., then pages
that belong to nobody. Rows are the tokens of the batch with each of their heads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw
from twophase_labs.prefill.paged_oracle import RaggedBatch, ragged_batch

NAMES = "ABCDEFGH"


def weighing_batch(
    draw: Draw,
    query_lens: Sequence[int],
    cached: Sequence[int],
    *,
    heads: tuple[int, int] = (6, 2),
    head_dim: int = 64,
    page: int = 4,
    num_pages: int = 5,
) -> RaggedBatch:
    """As `ragged_batch`, with V of each (KV head, page, slot) a unit vector of its own."""
    used = sum(-(-(new + old) // page) for new, old in zip(query_lens, cached, strict=True))
    batch = ragged_batch(
        draw, query_lens, cached, heads=heads, head_dim=head_dim, page=page, spare_pages=num_pages - used
    )
    batch.q /= 2  # else most weights would be too small to be seen
    units = torch.eye(head_dim)[: heads[1] * num_pages * page]
    batch.v_cache = units.view(heads[1], num_pages, page, head_dim).transpose(0, 1).contiguous()
    return batch


def _order(batch: RaggedBatch) -> list[tuple[int, int, str]]:
    """(KV head, page * PAGE + offset, name) of each column."""
    num_pages, num_kv_heads, page, _ = batch.k_cache.shape
    owned: list[tuple[int, str, int]] = []  # page, owner's name, first position
    for s, seq_len in enumerate(batch.seq_lens.tolist()):
        table = batch.block_tables[s].tolist()
        owned += [(table[i], NAMES[s], i * page) for i in range(-(-seq_len // page))]
    names = {p: (owner, first) for p, owner, first in owned}
    pages = [p for p, _, _ in owned] + [p for p in range(num_pages) if p not in names]
    columns = []
    for head in range(num_kv_heads):
        for p in pages:
            for offset in range(page):
                name = f"free slot {offset}"
                if p in names:
                    owner, first = names[p]
                    is_key = first + offset < int(batch.seq_lens[NAMES.index(owner)])
                    name = f"{owner} key {first + offset}" if is_key else f"{owner} unused slot {offset}"
                columns.append((head, p * page + offset, f"{name}, block {p}, KV head {head}"))
    return columns


def weights_of(batch: RaggedBatch, out: Tensor) -> Tensor:
    """[T * H, columns]: the weight that each row gave to each slot."""
    num_pages, _, page, _ = batch.k_cache.shape
    order = [head * num_pages * page + slot for head, slot, _ in _order(batch)]
    return out[: len(batch.owners())].flatten(0, 1)[:, order]


def names_of_columns(batch: RaggedBatch) -> list[str]:
    return [name for *_, name in _order(batch)]


def names_of_rows(batch: RaggedBatch) -> list[str]:
    return [f"{NAMES[s]} query {i}, head {h}" for s, i in batch.owners() for h in range(batch.q.shape[1])]


def page_borders(batch: RaggedBatch) -> list[int]:
    num_pages, num_kv_heads, page, _ = batch.k_cache.shape
    return list(range(page, num_pages * num_kv_heads * page, page))


def names_of_blocks(batch: RaggedBatch) -> list[str]:
    """A name for what stands between two borders: its owner, its block, and where they begin the KV head."""
    page, blocks = batch.k_cache.shape[2], []
    for name in names_of_columns(batch)[::page]:
        slot, block, head = name.split(", ")
        owner = "free" if slot.startswith("free") else slot.split()[0]
        blocks.append(f"{owner}\n{block}\nhead {head.removeprefix('KV head ')}")
    return blocks


def unused_columns(batch: RaggedBatch) -> list[int]:
    """Columns of slots that hold no token."""
    return [i for i, name in enumerate(names_of_columns(batch)) if " key " not in name]
