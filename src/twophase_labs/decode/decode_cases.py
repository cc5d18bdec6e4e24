"""Sequences in pages for the checks of decode kernels, the oracle, and the map of what a kernel read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from twophase_labs.kit.weights_map import compare_weights
from twophase_labs.machine.checks import Draw

AXES = {"out": ("sequence", "head", "dim"), "partial": ("sequence", "head", "split", "dim")}


@dataclass
class DecodeCase:
    """What a decode kernel is given. `pages` holds the block table of each sequence without its padding, page 0."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    pages: list[list[int]]
    lengths: Sequence[int]
    scale: float
    padding: int = 0  # columns of the table after the longest row
    inputs: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        tables = torch.zeros(len(self.pages), max(len(p) for p in self.pages) + self.padding, dtype=torch.int32)
        for row, pages in enumerate(self.pages):
            tables[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self.inputs = {
            "q": self.q,
            "k_cache": self.k_cache,
            "v_cache": self.v_cache,
            "block_tables": tables,
            "seq_lens": torch.tensor(list(self.lengths), dtype=torch.int32),
        }

    @property
    def page(self) -> int:
        return self.k_cache.shape[2]

    def slots(self, sequence: int) -> list[tuple[int, int]]:
        """(page, slot in it) of each of the sequence's tokens."""
        pages = self.pages[sequence]
        return [(pages[p // self.page], p % self.page) for p in range(self.lengths[sequence])]

    def spoil_unused_slots(self) -> None:
        """NaN into all that no sequence has: what lies past a last token, and other pages."""
        is_used = torch.zeros(len(self.k_cache), self.page, dtype=torch.bool)
        for sequence in range(len(self.lengths)):
            for page, slot in self.slots(sequence):
                is_used[page, slot] = True
        for cache in (self.k_cache, self.v_cache):
            cache.masked_fill_(~is_used[:, None, :, None], math.nan)

    def level_scores(self, score: float) -> None:
        """Make all scores alike, so that outputs are plain means of the values."""
        self.q.fill_(score / self.q.shape[-1] / self.scale)
        self.k_cache.fill_(1.0)


def draw_pages(draw: Draw, lengths: Sequence[int], page: int, num_pages: int, first_page: int = 0) -> list[list[int]]:
    """Pages from `first_page` on for each length, in random order and none twice."""
    order = (first_page + draw.permutation(num_pages - first_page)).tolist()
    wanted = [-(-length // page) for length in lengths]
    if sum(wanted) > len(order):
        raise ValueError(f"{sum(wanted)} blocks are wanted of {len(order)}")
    return [[order.pop() for _ in range(n)] for n in wanted]


def random_case(
    draw: Draw,
    lengths: Sequence[int],
    *,
    heads: int,
    kv_heads: int,
    dim: int,
    page: int,
    peak: float = 4.0,
    first_page: int = 0,
    columns: int = 0,
) -> DecodeCase:
    """Random K and V, two pages more than needed, and queries large enough that the softmax is not nearly uniform.

    Pages below `first_page` belong to nobody. Block tables have at least `columns` columns.
    """
    num_pages = sum(-(-length // page) for length in lengths) + 2
    shape = (num_pages, kv_heads, page, dim)
    return DecodeCase(
        peak * draw.normal(len(lengths), heads, dim),
        draw.normal(*shape),
        draw.normal(*shape),
        draw_pages(draw, lengths, page, num_pages, first_page),
        lengths,
        1 / math.sqrt(dim),
        padding=max(0, columns - max(-(-length // page) for length in lengths)),
    )


def map_case(
    draw: Draw, lengths: Sequence[int], *, heads: int, kv_heads: int, page: int, num_pages: int, peak: float = 0.0
) -> DecodeCase:
    """The value of each slot is a unit vector of its own, so an output is the weights of all slots.

    With a `peak` of 0 queries are 0, and whatever a kernel makes of scores, a key that is read weighs as much as any.
    No sequence has page 0, so that a read through the table's padding is seen.
    """
    dim = kv_heads * num_pages * page
    values = torch.eye(dim).view(kv_heads, num_pages, page, dim).transpose(0, 1)
    return DecodeCase(
        peak * draw.normal(len(lengths), heads, dim),
        draw.normal(num_pages, kv_heads, page, dim),
        values.contiguous(),
        draw_pages(draw, lengths, page, num_pages, first_page=1),
        lengths,
        1 / math.sqrt(dim),
        padding=2,
    )


def naive_decode(case: DecodeCase) -> tuple[Tensor, Tensor]:
    """(out [B, H, D], LSE base 2 [B, H]), a position at a time in float64."""
    num_heads, num_kv_heads = case.q.shape[1], case.k_cache.shape[1]
    out, lse = torch.zeros(case.q.shape, dtype=torch.float64), torch.zeros(case.q.shape[:2], dtype=torch.float64)
    for sequence in range(len(case.lengths)):
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            rows = case.slots(sequence)
            keys = torch.stack([case.k_cache[n, kv_head, s].double() for n, s in rows])
            values = torch.stack([case.v_cache[n, kv_head, s].double() for n, s in rows])
            scores = keys @ case.q[sequence, head].double() * case.scale
            out[sequence, head] = scores.softmax(0) @ values
            lse[sequence, head] = scores.logsumexp(0) / math.log(2)
    return out.float(), lse.float()


def compare_access(case: DecodeCase, out: Tensor) -> None:
    """Reject an output of `map_case` whose weights are wrong, with a map per sequence of what was read."""
    expected, _ = naive_decode(case)
    heads = [f"query head {head}" for head in range(out.shape[1])]
    for sequence in range(len(case.lengths)):
        order, names = slot_order(case, sequence)
        compare_weights(
            out[sequence][:, order],
            expected[sequence][:, order],
            rows=heads,
            columns=names,
            row_axis="query head",
            column_axis="key: own blocks in order, then the others",
            bounds=range(case.page, len(order), case.page),
            title=f"sequence {sequence}" if len(case.lengths) > 1 else "weights",
        )


def compare_kv_heads(case: DecodeCase, out: Tensor) -> None:
    """Reject an output of `map_case` whose rows have weight on a KV head that is not theirs, wherever in its pages."""
    (num_heads, dim), num_kv_heads = out.shape[1:], case.k_cache.shape[1]
    shares = out[0].view(num_heads, num_kv_heads, dim // num_kv_heads).sum(-1)
    expected = torch.eye(num_kv_heads).repeat_interleave(num_heads // num_kv_heads, 0)
    compare_weights(
        shares / shares.sum(-1, keepdim=True),
        expected,
        rows=[f"query head {head}" for head in range(num_heads)],
        columns=[f"KV head {head}" for head in range(num_kv_heads)],
        row_axis="query head",
        column_axis="KV head",
        bounds=range(1, num_kv_heads),
        title="KV heads",
    )


def compare_reads(case: DecodeCase, out: Tensor) -> None:
    """Reject an output of `map_case` that reads other slots than its own, or not all of them but the last."""
    for sequence, length in enumerate(case.lengths):
        order, names = slot_order(case, sequence)
        reads = torch.where(out[sequence][:, order].isnan(), math.nan, (out[sequence][:, order] != 0).float())
        expected = torch.tensor([float(column < length) for column in range(len(order))]).expand_as(reads).clone()
        expected[:, length - 1] = reads[:, length - 1]
        compare_weights(
            reads,
            expected,
            rows=[f"query head {head}" for head in range(out.shape[1])],
            columns=names,
            row_axis="query head",
            column_axis="slot: own blocks in order, then the others",
            bounds=range(case.page, len(order), case.page),
            title="slots",
        )


def slot_order(case: DecodeCase, sequence: int) -> tuple[list[int], list[str]]:
    """Indices of all slots of `map_case` as one reads them: for each KV head its own pages first; and their names."""
    num_pages, num_kv_heads, page, _ = case.k_cache.shape
    own = case.pages[sequence]
    order, names = [], []
    for kv_head in range(num_kv_heads):
        for n in own + [n for n in range(num_pages) if n not in own]:
            for slot in range(page):
                order.append((kv_head * num_pages + n) * page + slot)
                names.append(_name(case, sequence, kv_head, n, slot))
    return order, names


def _name(case: DecodeCase, sequence: int, kv_head: int, n: int, slot: int) -> str:
    own = case.pages[sequence]
    place = f"block {n}, slot {slot}"
    if case.k_cache.shape[1] > 1:
        place = f"KV head {kv_head}, {place}"
    if n not in own:
        return f"{place}: not its own"
    position = own.index(n) * case.page + slot
    return f"position {position} ({place})" if position < case.lengths[sequence] else f"{place}: past the end"


def on_device(case: DecodeCase) -> dict[str, Tensor | float]:
    """The case as keyword arguments of a launcher, where kernels run."""
    from twophase_labs.machine.kernels import device

    return {**{name: tensor.to(device) for name, tensor in case.inputs.items()}, "scale": case.scale}
