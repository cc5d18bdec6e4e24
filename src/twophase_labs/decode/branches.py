"""Several continuations of one text, in pages of one pool, computed by SmolLM2: parallel samples and beams."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from twophase_labs.decode.decoder import Decoder


@dataclass
class Branch:
    """One continuation: [0, table.num_tokens) of `ids` are in pages, the last one is not read yet."""

    table: Any
    ids: list[int]
    log_prob: float = 0.0


@dataclass
class PagedModel:
    """A model whose K and V lie in the pages of a learner's pool; `attend` reads them.

    Attributes:
        copied: Every block copy that a write needed, as (source, target).
        most_blocks: The largest number of blocks in use after any step.
    """

    decoder: Decoder
    pool: Any
    block_size: int
    attend: Callable[..., Tensor]
    prepare_write: Callable[[Any], Sequence[tuple[int, int]]]
    copied: list[tuple[int, int]] = field(default_factory=list)
    most_blocks: int = 0

    def __post_init__(self) -> None:
        shape = (
            2,
            self.decoder.num_layers,
            len(self.pool.ref_counts),
            self.decoder.num_kv_heads,
            self.block_size,
            self.decoder.head_dim,
        )
        self.pages = torch.zeros(shape)  # K and V, by layer, block, KV head, slot

    def read_prompt(self, table: Any, ids: Sequence[int]) -> Float[Tensor, "V"]:
        """The whole prompt into an empty table; the logits of its last row."""
        table.grow(len(ids))
        positions = torch.arange(len(ids))
        slots = torch.tensor([table.slot(position) for position in range(len(ids))])
        x = self.decoder.embed(torch.tensor(list(ids)))
        for layer in range(self.decoder.num_layers):
            q, k, v = self.decoder.project(layer, x, positions)
            self._write(layer, slots, k, v)
            x = self.decoder.finish(layer, x, self.decoder.attend(q, k, v))
        self._count()
        return self.decoder.logits(x[-1:])[0]

    def step(self, branches: Sequence[Branch]) -> Float[Tensor, "B V"]:
        """The last token of every branch: copies first, then a slot each, then one batch through the model."""
        for branch in branches:
            copies = list(self.prepare_write(branch.table))
            for source, target in copies:
                self.pages[:, :, target] = self.pages[:, :, source]
            self.copied += copies
            branch.table.grow(len(branch.ids))
        positions = torch.tensor([len(branch.ids) - 1 for branch in branches])
        slots = torch.tensor([branch.table.slot(len(branch.ids) - 1) for branch in branches])
        widest = max(len(branch.table.block_ids) for branch in branches)
        tables = torch.tensor([(b.table.block_ids + widest * [0])[:widest] for b in branches], dtype=torch.int32)
        lengths = torch.tensor([branch.table.num_tokens for branch in branches], dtype=torch.int32)
        x = self.decoder.embed(torch.tensor([branch.ids[-1] for branch in branches]))
        for layer in range(self.decoder.num_layers):
            q, k, v = self.decoder.project(layer, x, positions)
            self._write(layer, slots, k, v)
            k_cache, v_cache = self.pages[:, layer]
            out = self.attend(
                q.transpose(0, 1).contiguous(), k_cache, v_cache, tables, lengths, self.decoder.head_dim**-0.5
            )
            x = self.decoder.finish(layer, x, out.transpose(0, 1))
        self._count()
        return self.decoder.logits(x)

    def _write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        blocks, offsets = slots // self.block_size, slots % self.block_size
        for part, new in zip(self.pages[:, layer], (k, v), strict=True):
            part[blocks, :, offsets] = new.transpose(0, 1)

    def _count(self) -> None:
        self.most_blocks = max(self.most_blocks, len(self.pool.ref_counts) - self.pool.num_free)


def draw_samples(model: PagedModel, branches: Sequence[Branch], first: Float[Tensor, "V"], num_new: int) -> None:
    """Extend each branch by `num_new` tokens, branch i with random numbers of its own from seed i."""
    generators = [torch.Generator().manual_seed(seed) for seed in range(len(branches))]
    rows = [first] * len(branches)
    for turn in range(num_new):
        for branch, row, generator in zip(branches, rows, generators, strict=True):
            branch.ids.append(int(torch.multinomial(row.softmax(-1), 1, generator=generator)))
        if turn < num_new - 1:
            rows = list(model.step(branches))


def search_beams(
    model: PagedModel,
    root: Branch,
    first: Float[Tensor, "V"],
    fork: Callable[[Any], Any],
    *,
    width: int,
    num_new: int,
) -> tuple[list[Branch], int]:
    """The `width` likeliest continuations found step by step, the best first; and how many beams were dropped."""
    beams, rows, num_dropped = [root], first[None], 0
    for turn in range(num_new):
        scores = torch.tensor([[beam.log_prob] for beam in beams]) + rows.log_softmax(-1)
        best, order = scores.flatten().topk(width)
        vocabulary = rows.shape[1]
        chosen = [(at // vocabulary, at % vocabulary, s) for s, at in zip(best.tolist(), order.tolist(), strict=True)]
        # All forks before any table is freed: a beam that goes on twice must not lose its blocks in between.
        grown = [Branch(fork(beams[i].table), [*beams[i].ids, token], s) for i, token, s in chosen]
        for beam in beams:
            beam.table.free()
        num_dropped += len(set(range(len(beams))) - {i for i, _, _ in chosen})
        beams = grown
        if turn < num_new - 1:
            rows = model.step(beams)
    return beams, num_dropped
