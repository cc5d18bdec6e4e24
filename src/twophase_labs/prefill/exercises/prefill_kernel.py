"""2.8 The prefill kernel on pages."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from twophase_labs.kit.guarded import require_stored, run_guarded
from twophase_labs.kit.weights_map import compare_weights
from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import cases, exercise
from twophase_labs.prefill.launch import launch_paged_prefill
from twophase_labs.prefill.paged_oracle import RaggedBatch, paged_attention, poison_unused, ragged_batch
from twophase_labs.prefill.weights import (
    names_of_blocks,
    names_of_columns,
    names_of_rows,
    page_borders,
    unused_columns,
    weighing_batch,
    weights_of,
)

BATCHES = cases(query_lens=((4,), (3, 2)), cached=((0,), (0, 6)))

KERNEL = exercise("2.8", "The paged prefill kernel", "paged_prefill_kernel", "kernel", points=6, minutes=20, lines=28)
KERNEL.difficulty, KERNEL.time_limit_s = 3, 60
KERNEL.objective = "attend over a paged cache, for a ragged batch of prompt chunks with grouped heads"
KERNEL.hints = (
    "Do it by hand for sequence A of the picture: a chunk of 5 tokens behind 6 in the cache, G = 3, BLOCK_Q = 2, "
    "and the program of tile 1. Which tokens, heads and positions do its rows have? Row 4 is token 3 of the chunk, "
    "head 1 of the group, position 9.",
    "Three counts begin at different places: tokens of the chunk, rows of the flat batch, positions of the "
    "sequence. A chunk's tokens are the last chunk_len of seq_len. In the loop of 2.7 three things change: where k and "
    "v are loaded from (through the table), which keys exist, and `visible`. Before it: which row of q a row is.",
    "Skeleton:\n"
    "heads = ...\n"
    "rows = ...                             # of q, seen as [T * H, D]\n"
    "row_positions = ...\n"
    "mask_m = (offs_m < BLOCK_Q * G) & ...  # rows that hold a token of this chunk\n"
    "q = tl.load(..., mask=mask_m[:, None] & ..., other=0.0)\n"
    "hi = tl.minimum(..., seq_len)          # no row of this program sees a position from here on\n"
    "table_ptr = block_tables_ptr + ...\n"
    "row_max, row_sum, acc = ...            # as in 2.7\n"
    "for start in range(0, hi, BLOCK_N):\n"
    "    positions = start + tl.arange(0, BLOCK_N)\n"
    "    in_range = ...\n"
    "    page_ids = tl.load(table_ptr + ..., mask=in_range, other=0)\n"
    "    kv_rows = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + ...\n"
    "    ...                                # k, v, scores, visible and the update, as in 2.7\n"
    "tl.store(out_ptr + ..., acc / row_sum[:, None], mask=...)\n"
    "tl.store(lse_ptr + rows, ..., mask=mask_m)",
)


TILE = 16  # rows of a program, and keys of a tile


def launch_of(answer: Any, batch: RaggedBatch, max_query_len: int | None = None) -> Callable[..., None]:
    def launch(**tensors: Any) -> None:
        kernel, scale = answer.paged_prefill_kernel, batch.scale
        launch_paged_prefill(
            kernel, **tensors, scale=scale, block_m=TILE, block_n=TILE, max_query_len=max_query_len
        )  # fmt: skip

    return launch


def outputs_of(batch: RaggedBatch) -> dict[str, Tensor]:
    return {"out": torch.empty_like(batch.q), "lse": torch.empty(batch.q.shape[:2])}


def prefill(answer: Any, batch: RaggedBatch, max_query_len: int | None = None) -> tuple[Tensor, Tensor]:
    """(out, LSE) of the learner's kernel. A `max_query_len` below the longest chunk leaves out its last programs."""
    got = run_guarded(launch_of(answer, batch, max_query_len), batch.tensors, outputs_of(batch))
    return got["out"], got["lse"]


@KERNEL.check("reads the right slots of one head", query_lens=((4,), (6,)), cached=((0,), (0,)), heads=((1, 1), (1, 1)))
def reads_the_right_keys(
    answer: Any, draw: Draw, query_lens: Sequence[int], cached: Sequence[int], heads: tuple[int, int] = (6, 2)
) -> None:
    """One sequence, one head, no history. Position p is in entry p // PAGE of the table, at offset p % PAGE; a row
    sees keys up to its own position. A read past q's end comes from `heads` (with one head every row's is 0) or
    from `rows`; NaN from a masked load without `other`, or from minus infinity less minus infinity."""
    batch = weighing_batch(draw, query_lens, cached, heads=heads)
    expected, _ = paged_attention(batch)
    got, _ = prefill(answer, batch)
    if got.isnan().any():
        require_stored(launch_of(answer, batch), batch.tensors, outputs_of(batch), "out", names_of_rows(batch))
    compare_weights(
        weights_of(batch, got),
        weights_of(batch, expected),
        rows=names_of_rows(batch),
        columns=names_of_columns(batch),
        row_axis="query and its head",
        column_axis="slots: their sequence, block and KV head; blue: no token there",
        bounds=page_borders(batch),
        groups=names_of_blocks(batch),
        unused=unused_columns(batch),
        title="weights",
    )


KERNEL.check(
    "reads the right KV head",
    query_lens=((4,),),
    cached=((0,),),
    hint="Row r of a program is query head kv_head * G + r % G, and a block has all slots of KV head 0, then all of "
    "KV head 1.",
)(reads_the_right_keys)
KERNEL.check(
    "sees the history",
    query_lens=((2,),),
    cached=((5,),),
    hint="A chunk's tokens are the last of their sequence: the first of them stands at position num_cached.",
)(reads_the_right_keys)
KERNEL.check(
    "keeps sequences apart",
    query_lens=((3, 2),),
    cached=((0, 6),),
    hint="Each sequence has a row of the block table, and its chunk begins at chunk_start in the flat batch.",
)(reads_the_right_keys)


@KERNEL.check("leaves the next program's rows alone", heads=((6, 2), (5, 1)))
def leaves_the_next_alone(answer: Any, draw: Draw, heads: tuple[int, int]) -> None:
    """Of the BLOCK_M rows only BLOCK_Q * G are the program's own; the row behind them is a token of the next tile.
    Where two programs store one row, luck decides on a GPU which store comes last. So the
    mask of the rows has `offs_m < BLOCK_Q * G` in it."""
    block_q = TILE // (heads[0] // heads[1])
    batch = ragged_batch(draw, (block_q + 2,), (3,), heads=heads)
    got, lse = prefill(answer, batch, max_query_len=block_q)  # the programs of the first tile, alone
    for name, stored in (("out", got), ("lse", lse[..., None])):
        is_stored = ~stored[block_q:].isnan().all(-1)
        if bool(is_stored.any()):
            token, head = (int(i) for i in is_stored.nonzero()[0])
            reject(
                f"a program of tokens 0 to {block_q - 1} stores token {block_q + token}, head {head}, too",
                f"that row of `{name}` belongs to the next program",
            )


@KERNEL.check(
    "matches attention in a loop",
    {"query_lens": (1,), "cached": (0,), "heads": (1, 1), "head_dim": 16, "page": 16},
    {"query_lens": (7, 1, 12), "cached": (0, 20, 9), "heads": (6, 2), "head_dim": 16, "page": 4},
    {"query_lens": (33,), "cached": (0,), "heads": (9, 3), "head_dim": 32, "page": 16},
    {"query_lens": (17, 0, 5), "cached": (3, 0, 40), "heads": (4, 4), "head_dim": 24, "page": 8},
    {"query_lens": (3, 2), "cached": (150, 0), "heads": (5, 1), "head_dim": 16, "page": 32},
)
def matches_a_loop(
    answer: Any,
    draw: Draw,
    query_lens: Sequence[int],
    cached: Sequence[int],
    heads: tuple[int, int],
    head_dim: int,
    page: int,
) -> None:
    # No entry more than the longest sequence needs: the kernel is told how far the rows of the table are apart, and
    # behind the last entry there is no table.
    """Small batches are right. What changes here: more key tiles than one, more query tiles per chunk, other
    numbers of heads, a head size that is no power of two. (Rows of the second query tile begin at first_token; a
    chunk's last tile may reach beyond seq_len, where the loop has to end.)"""
    width = max(-(-(new + old) // page) for new, old in zip(query_lens, cached, strict=True))
    batch = ragged_batch(draw, query_lens, cached, heads=heads, head_dim=head_dim, page=page, table_width=width)
    expected, _ = paged_attention(batch)
    got, _ = prefill(answer, batch)
    compare(got, expected, what="the attention", axes=("token", "head", "dim"), atol=1e-4)


@KERNEL.check("takes float16 as well")
def takes_float16(answer: Any, draw: Draw) -> None:
    """Both tiles of a `tl.dot` are of one type: `p.to(v.dtype)`. The state stays float32."""
    batch = ragged_batch(draw, (7, 2), (0, 18))
    batch.q, batch.k_cache, batch.v_cache = batch.q.half(), batch.k_cache.half(), batch.v_cache.half()
    expected, _ = paged_attention(batch)
    got, _ = prefill(answer, batch)
    axes = ("token", "head", "dim")
    compare(got, expected.half(), what="the attention in float16", axes=axes, rtol=2e-2, atol=2e-2)


@KERNEL.check("loads no tile above the diagonal")
def loads_no_hidden_tile(answer: Any, draw: Draw) -> None:
    """The loop ends behind the program's own last token, as in 2.7: neither a mask on the scores nor a weight of 0
    helps against NaN in v, and every tile above the diagonal is a waste."""
    batch = ragged_batch(draw, (40,), (2,))
    expected, _ = paged_attention(batch)
    first = 2 * TILE  # a whole tile
    for page, offset in batch.slots(0)[first:]:
        batch.k_cache[page, :, offset], batch.v_cache[page, :, offset] = math.nan, math.nan
    got, _ = prefill(answer, batch)
    num_tokens = first - 2  # six programs of five tokens; the last of them ends with the second tile
    what = f"the attention of tokens 0 to {num_tokens - 1}, with NaN in k and v from position {first} on,"
    compare(got[:num_tokens], expected[:num_tokens], what=what, axes=("token", "head", "dim"), atol=1e-4)


@KERNEL.check("leaves other rows alone")
def leaves_other_rows_alone(answer: Any, draw: Draw) -> None:
    """The last query tile of a chunk has rows beyond its end. They must be neither loaded nor stored."""
    batch = ragged_batch(draw, (2, 3), (0, 2), spare_tokens=3)
    got, lse = prefill(answer, batch)
    if not bool(got[5:].isnan().all()) or not bool(lse[5:].isnan().all()):
        reject("rows of q that belong to no chunk were written", "The chunks end at cu_query_lens[S] = 5.")


@KERNEL.check("keeps unused slots out", query_lens=((1,), (3, 2)), cached=((0,), (0, 7)))
def keeps_unused_slots_out(answer: Any, draw: Draw, query_lens: Sequence[int], cached: Sequence[int]) -> None:
    """A slot that nobody wrote may hold NaN, and a weight of 0 does not help: 0 · NaN is NaN. Keys behind
    the program's last token, and behind seq_len, must not be loaded."""
    batch = ragged_batch(draw, query_lens, cached)
    poison_unused(batch)
    expected, _ = paged_attention(batch)
    got, _ = prefill(answer, batch)
    compare(
        got, expected, what="the attention, with NaN in all unused slots,", axes=("token", "head", "dim"), atol=1e-4
    )


@KERNEL.check("gives the LSE in base 2", *BATCHES)
def gives_the_lse(answer: Any, draw: Draw, query_lens: Sequence[int], cached: Sequence[int]) -> None:
    """It is row_max + log2(row_sum); both are base 2 already."""
    batch = ragged_batch(draw, query_lens, cached)
    _, expected = paged_attention(batch)
    _, got = prefill(answer, batch)
    compare(got, expected, what="the LSE", axes=("token", "head"), atol=1e-4)


KERNEL.compiled = partial(matches_a_loop, query_lens=(7, 1, 12), cached=(0, 20, 9), heads=(6, 2), head_dim=16, page=4)
