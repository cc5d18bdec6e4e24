"""paged_prefill against a naive fp64 oracle; what must not change its result; and what it must refuse."""

import functools
import itertools
import math

import pytest
import torch

from tests.kernels.attention_grid import WINDOWS, grid_points, small_tiles, three_values
from tests.kernels.cases import (
    HERE,
    TOLERANCE,
    assert_close,
    attend_ragged,
    attention_oracle,
    check_attention,
    make_case,
)
from twophase_kernels import paged_prefill as module
from twophase_kernels.paged_decode import decode_tiles
from twophase_kernels.paged_prefill import prefill_tiles

pytest.importorskip("triton", reason="not run here: no triton")

TILES = small_tiles(64, 32)  # of which short sequences have several
prefill = functools.partial(attend_ragged, module.paged_prefill, tiles=TILES)
check = functools.partial(check_attention, attend_ragged, module.paged_prefill, tiles=TILES)


def check_chunks(point, query_lens=(1, 5, 129, 0, 64, 2), cached=None):
    """Chunks of tokens after `cached` ones: around tiles of queries and of keys, without and with cached tokens."""
    cached = cached or [point.page - 1, 0, 65, 3, 64, 1100]
    case = point.case([q + c for q, c in zip(query_lens, cached, strict=True)], list(query_lens))
    check(case, tiles=None, **point.windows)


@pytest.mark.parametrize("point", grid_points("prefill", 1), ids=str)
def test_each_value(point):
    check_chunks(point)


@three_values
@pytest.mark.parametrize("point", grid_points("prefill", 3), ids=str)
def test_every_three_values(point):
    check_chunks(point)


@pytest.mark.parametrize(("window", "num_sinks"), [*WINDOWS, (1, 0), (1, 3), (40, 200), (64, 64)])
def test_windows(window, num_sinks):
    """All four ranges of keys (sinks, the window's edge, full tiles, the diagonal) with several tiles each."""
    case = make_case([150, 129, 70], [100, 129, 3], device=HERE)
    check(case, window=window, num_sinks=num_sinks)


def test_a_loose_bound_on_chunks():
    check(make_case([150, 129], [20, 129], heads=(9, 3), device=HERE), tiles=None, max_query_len=4096)


def test_many_tiny_chunks():
    """More chunks than query blocks, some empty, first and last too: each program must find its own."""
    query_lens = [0, 1, 0, 0, 17, 1, 2, 16, 0, 33, 1, 1, 0]
    check(make_case([n + s for s, n in enumerate(query_lens)], query_lens, device=HERE))


# What must not change the result.


def test_strided_queries_and_rows_of_nobody():
    """q as a view of the fused projection; rows after the last chunk are neither read nor written."""
    case = make_case([40, 20], [20, 20], device=HERE)
    fused = torch.full((45, 8, 64), math.nan, device=HERE)
    fused[:40, :4] = case.q
    out = torch.full((45, 4, 64), 7.0, device=HERE)
    got = prefill(case, q=fused[:, :4], out=out, return_lse=False)
    assert got is out
    assert_close(out[:40], attention_oracle(case)[0], TOLERANCE[torch.float32])
    assert (out[40:] == 7).all()


def test_nothing_to_do():
    out, lse = prefill(make_case([5, 3], [0, 0], device=HERE), max_query_len=1)
    assert (out.shape, lse.shape) == ((0, 4, 64), (0, 4))


def test_tiles_hold_the_group():
    generations, formats = ("cpu", "ampere", "ada", "hopper", "cdna"), ("none", "int8")
    axes = generations, (torch.float32, torch.bfloat16), formats, (64, 128, 256), (1, 1000)
    for generation, dtype, kv_format, head_dim, max_query_len in itertools.product(*axes):
        assert prefill_tiles(71, head_dim, dtype, kv_format, True, max_query_len, generation).block_m >= 71
        assert decode_tiles(71, head_dim, dtype, kv_format, generation).block_m >= 71


# What is refused. (What both kernels refuse alike is tested with paged_decode.)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cu_query_lens": torch.zeros(2, dtype=torch.int32, device=HERE)}, r"cu_query_lens must be .*\[S\+1=3\]"),
        ({"cu_query_lens": torch.zeros(3, dtype=torch.int64, device=HERE)}, r"cu_query_lens must be .*int32"),
        ({"out": torch.zeros(25, 4, 32, device=HERE)}, "out must be contiguous"),
        ({"tiles": module.Tiles(1, 32, 4, 1)}, "block_m must hold the 2 heads of one token, got 1"),
        ({"window": -3}, "window must be at least 1"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_refuses(options, message):
    case = make_case([40, 5], [20, 5], device=HERE)
    with pytest.raises(ValueError, match=message):
        prefill(case, **{"tiles": None} | options)
