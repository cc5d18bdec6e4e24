"""Planted bugs in the attention kernels, each of which a small peaky case must notice."""

import functools
from contextlib import nullcontext

import pytest
import torch

from tests.kernels.cases import (
    HERE,
    assert_attention,
    attend,
    attend_ragged,
    attention_oracle,
    check_attention,
    far_away_case,
    make_case,
)
from tests.kernels.elementwise import kept_workspace
from tests.kernels.planting import noticing
from tests.kernels.test_attend_range import check_small_values
from tests.kernels.test_merge_splits import check_merge
from tests.kernels.test_paged_decode import check_find
from twophase_kernels.attend_range import Tiles

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(HERE == "cuda", reason="a mutant that reads astray would take the CUDA context with it")

TILES, LONG_TILES = (Tiles(16, block_n, num_warps=4, num_stages=1) for block_n in (32, 256))


def check_case(module, seq_lens, query_lens=None, kv_format="none", dtype=torch.float32, num_idle=0, **given):
    """q and out lie inside larger buffers; rows around them, and `num_idle` of theirs that are of no sequence, must stay."""
    case = make_case(seq_lens, query_lens, heads=(6, 2), kv_format=kv_format, dtype=dtype, device=HERE)
    num_tokens, guard = len(case.q), case.q.new_full((64, *case.q.shape[1:]), 7.0)
    queries = torch.cat([guard, case.q, guard[:num_idle], guard])
    results = torch.full_like(queries, 7.0)
    given = {"q": queries[64:-64], "out": results[64:-64], "return_lse": True} | given
    function = getattr(module, "paged_prefill", None) or module.paged_decode
    # Mutants may leave some of the workspace unwritten, or write beyond it.
    has_workspace = hasattr(module, "new_workspace")
    with kept_workspace(module, fill=0.0, guard=10_000) if has_workspace else nullcontext():
        got = (attend if query_lens is None else attend_ragged)(function, case, **given)
    for written in (results[:64], results[64 + num_tokens :]):
        assert (written == 7).all(), "wrote outside of the result"
    want = attention_oracle(case, given.get("window"), given.get("num_sinks", 0))
    got = got if given["return_lse"] else (got, want[1])
    assert_attention([result[:num_tokens] for result in got], want)


options = functools.partial
check_decode = options(check_case, seq_lens=[33, 2], num_splits=1, tiles=TILES)
# Drafts to verify: tiles of 16 rows hold 5 tokens of 3 heads.
check_few = options(check_case, seq_lens=[33, 2, 0, 70], query_lens=[5, 1, 0, 3], num_idle=9, num_splits=1, tiles=TILES)
# A sequence of three chunks between short ones.
BY_LENGTH = {"num_splits": None, "tiles": LONG_TILES}
check_by_length = options(check_decode, seq_lens=[3, 1100, 5], **BY_LENGTH)
check_few_by_length = options(check_few, seq_lens=[3, 1100, 5, 514], query_lens=[2, 5, 0, 3], **BY_LENGTH)
check_prefill = options(check_case, seq_lens=[49, 8], query_lens=[40, 3], tiles=Tiles(64, 16, 4, 1))


def check_strided(module):
    case = make_case([33, 9], device=HERE)
    fused = torch.cat([case.q, case.q[:, :2]], dim=1)
    check_attention(attend, module.paged_decode, case, q=fused[:, :4], num_splits=1, tiles=TILES)


def check_chunks(module):
    """The workspace says where each sequence's chunks begin, and how many they are."""
    case = make_case([3, 1100, 5], heads=(1, 1), device=HERE)
    with kept_workspace(module, fill=0.0) as kept:
        attend(module.paged_decode, case, tiles=LONG_TILES)
    assert kept, "the batch was not split"
    assert kept[0][-6:].view(torch.int32).tolist() == [0, 1, 1, 3, 4, 1]


def check_far_away(module):
    check_attention(attend, module.paged_decode, far_away_case(), num_splits=1)


def check_padded_head_dim(module):
    """D=80 in tiles of 128: what lies beyond a row is the next row, and in the last row of a page poison."""
    case = make_case([31], heads=(2, 1), head_dim=80, device=HERE)
    check_attention(attend, module.paged_decode, case, num_splits=1, tiles=TILES)


def check_table_of_two_rows(module):
    """The last sequence's table ends where its storage does."""
    case = make_case([16 * 16, 255], heads=(2, 1), device=HERE)
    check_attention(attend, module.paged_decode, case, num_splits=1)


WINDOW = {"window": 9, "num_sinks": 3}


# Those of attend_range, the loop that both kernels share, are seen through one of them.
MUTANTS = {
    ("attend_range", "paged_decode"): [
        ("page ids of this tile again", "positions + BLOCK_N, hi, PAGE)", "positions, hi, PAGE)", check_decode),
        ("page ids after the table's end", "mask=positions < end", "mask=positions < end + 64", check_table_of_two_rows),
        ("keys after the pool's end", "in_range = positions < hi\n", "in_range = positions < hi + 4096\n", check_table_of_two_rows),
        ("one key past the end", "in_range = positions < hi", "in_range = positions <= hi", check_decode),
        ("no rescaling of the output", "acc[0] * rescale[:, None]", "acc[0]", options(check_decode, seq_lens=[90, 33])),
        ("empty row is 0 / 0", "tl.where(state.row_sum == 0, 1.0, state.row_sum)", "state.row_sum", options(check_decode, seq_lens=[0, 5])),
        ("weights times a scale below fp16", "scores * qk_scale + about_log2(v_scale)[None, :]", "scores * qk_scale", options(check_small_values, kv_format="fp8_e4m3", value_std=1e-4)),
        ("LSE of the larger weights", "row_max = new_max", "row_max = new_max + (q[0].dtype == tl.float16)", options(check_decode, kv_format="fp8_e4m3", dtype=torch.float16)),
        ("scaled weights summed", "row_sum * rescale + tl.sum(p, axis=1)", "row_sum * rescale + tl.sum(p * (1.0 if KV_FORMAT == 'none' else 0.5), axis=1)", options(check_decode, kv_format="int8")),
        ("V taken for K", "v = load_tiles(v_ptr", "v = load_tiles(k_ptr", check_decode),
        ("every group reads KV head 0", "k_ptr += head_rows * layout.D", "k_ptr += 0", check_decode),
        ("value scales of KV head 0", "v_scale_ptr += head_rows", "v_scale_ptr += 0", options(check_decode, kv_format="int8")),
        ("padding of D read", "mask = (offs_d < D)[None, :]", "mask = (offs_d < BLOCK_D)[None, :]", check_padded_head_dim),
        ("32-bit offsets", "page_ids.to(tl.int64)", "page_ids", check_far_away),
    ],
    ("attend_range", "paged_prefill"): [
        ("unguarded -inf", 'tl.where(new_max == float("-inf"), 0.0, new_max)', "new_max", options(check_prefill, seq_lens=[80, 1], query_lens=[40, 1], window=3)),
        ("diagonal one too far", "positions[None, :] <= row_positions[:, None]", "positions[None, :] <= row_positions[:, None] + 1", check_prefill),
        ("window one too long", "> row_positions[:, None] - WINDOW", ">= row_positions[:, None] - WINDOW", options(check_prefill, **WINDOW)),
        ("sinks in the window's tiles dropped", "in_window | (positions < NUM_SINKS)[None, :]", "in_window", options(check_prefill, **WINDOW)),
    ],
    ("paged_decode",): [
        ("queries of the padding read", "+ offs_d[None, :], mask=mask_q, other=0.0)", "+ offs_d[None, :])", check_decode),
        ("last token dropped", "row_positions = tl.zeros([BLOCK_M], tl.int32) + (seq_len - num_tokens)", "row_positions = tl.zeros([BLOCK_M], tl.int32) + (seq_len - num_tokens - 1)", check_decode),
        ("queries of a contiguous tensor assumed", "first_token.to(tl.int64) * q_row_stride", "first_token.to(tl.int64) * (H * D)", check_strided),
        ("splits overlap", "split_lo = lo + split * split_len", "split_lo = lo + split * (split_len - 1)", options(check_decode, seq_lens=[90, 33], num_splits=3)),
        ("last split runs past the end", "split == num_splits - 1, seq_len, split_hi)", "split == num_splits - 1, split_lo + split_len, split_hi)", options(check_decode, seq_lens=[90, 33], num_splits=2)),
        ("no split takes what is left", "split == num_splits - 1, seq_len, split_hi)", "split < 0, seq_len, split_hi)", options(check_decode, seq_lens=[700, 33], max_seq_len=20, deterministic=True, num_splits=None)),
        ("window one too long", "tl.maximum(seq_len - (WINDOW + num_tokens - 1), 0)", "tl.maximum(seq_len - (WINDOW + num_tokens), 0)", options(check_decode, **WINDOW)),
        ("sinks counted twice", "tl.minimum(NUM_SINKS, lo), 0)", "NUM_SINKS, 0)", options(check_decode, seq_lens=[10, 33], **WINDOW)),
        ("nobody is split by length", "num_splits == 1 and is_split_by_length(batch_size, num_keys)", "False", check_chunks),
        ("empty sequences without an item", "tl.maximum(tl.cdiv(lens, chunk_len), 1)", "tl.cdiv(lens, chunk_len)", options(check_find, seq_lens=[900, 0, 1])),
        ("search starts again at each step", "num_items + tl.cumsum", "tl.cumsum", options(check_find, seq_lens=[1] * 128 + [4000])),
        ("item of the next sequence", "(ends <= item)", "(ends < item)", options(check_find, seq_lens=[900, 0, 1])),
        ("merge told too few", "chunks_ptr + 2 * sequence + 1, num_splits)", "chunks_ptr + 2 * sequence + 1, num_splits - 1)", check_by_length),
        ("partials of another split", "* num_splits + split\n", "* num_splits + num_splits - 1 - split // 2\n", options(check_decode, seq_lens=[90, 33], num_splits=3)),
        # What only sequences with several tokens show.
        ("one token too many", "cu_query_lens_ptr + sequence + 1) - first_token", "cu_query_lens_ptr + sequence + 1) - first_token + 1", check_few),
        ("window of the last token", "tl.maximum(seq_len - (WINDOW + num_tokens - 1), 0)", "tl.maximum(seq_len - WINDOW, 0)", options(check_few, window=9)),
        ("one window for all tokens", "ROW_WINDOW: tl.constexpr = WINDOW if SEVERAL else 0", "ROW_WINDOW: tl.constexpr = 0", options(check_few, window=9)),
        ("sinks in the windows' keys dropped", "ROW_WINDOW, NUM_SINKS)", "ROW_WINDOW, 0)", options(check_few, seq_lens=[33, 12], query_lens=[5, 5], **WINDOW)),
        ("items of one token's window", "item, SPAN, CHUNK, BLOCK_N)", "item, WINDOW, CHUNK, BLOCK_N)", options(check_few_by_length, window=510)),
    ],
    ("merge_splits", "paged_decode"): [
        ("absent tokens merged", "if out_row >= tl.load(cu_query_lens_ptr + row // ROWS + 1) * H:", "if out_row < 0:", options(check_few, num_splits=3)),
        ("chunks of one token apart", "step = ROWS", "step = H", check_few_by_length),
    ],
    ("paged_prefill",): [
        ("full tiles one too many", "(first_position + 1 - lo) // BLOCK_N * BLOCK_N", "tl.cdiv(first_position + 1 - lo, BLOCK_N) * BLOCK_N", check_prefill),
        ("last key of the block dropped", "hi = tl.minimum(first_position + BLOCK_Q, seq_len)", "hi = tl.minimum(first_position + BLOCK_Q - 1, seq_len)", check_prefill),
        ("previous sequence", "// BLOCK_Q + middle <= block", "// BLOCK_Q + middle < block", check_prefill),
        ("too few programs", "num_tokens // (tiles.block_m // group) + num_seqs", "num_tokens // (tiles.block_m // group)", check_prefill),
        # Row 63 of 64 is the next block's first token, whose own program runs before this one.
        ("idle rows stored", "mask_m = (offs_m < BLOCK_Q * G) &", "mask_m = (offs_m >= 0) &", options(check_prefill, seq_lens=[90, 8], query_lens=[60, 3])),
        ("window's edge ends early", "tl.cdiv(tl.maximum(hi - WINDOW - lo, 0), BLOCK_N)", "(tl.maximum(hi - WINDOW - lo, 0) // BLOCK_N)", options(check_prefill, seq_lens=[130, 8], query_lens=[40, 3], window=60)),
        ("sinks counted twice", "0, tl.minimum(NUM_SINKS, lo))", "0, NUM_SINKS)", options(check_prefill, **WINDOW)),
    ],
    ("merge_splits",): [
        ("empty splits are read", 'mask = (lse > float("-inf"))[:, None] & (offs_d < D)[None, :]', "mask = (offs_s < num_splits)[:, None] & (offs_d < D)[None, :]", check_merge),
        ("unguarded -inf", 'tl.where(m == float("-inf"), 0.0, m)', "m", options(check_merge, num_empty=20)),
        ("no split at all is 0 / 0", "tl.where(total == 0, 1.0, total)", "total", options(check_merge, num_empty=20)),
        ("only the first 16 splits", "acc += weight[:, None] *", "acc += (start < BLOCK_S) * weight[:, None] *", check_merge),
    ],
}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS)
