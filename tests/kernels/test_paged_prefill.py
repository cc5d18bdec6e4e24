"""paged_prefill against a naive fp64 oracle; what must not change its result; and what it must refuse."""

import functools
import itertools
import math

import pytest
import torch

from tests.kernels.attention_grid import WINDOWS, grid_points, grid_slices, of_the_whole_grid, small_tiles
from tests.kernels.cases import HERE, TOLERANCE, assert_attention, assert_close, attention_oracle, make_case
from twophase_kernels import paged_prefill as module
from twophase_kernels.attend_range import paged_attention_reference
from twophase_kernels.paged_decode import paged_decode
from twophase_kernels.paged_prefill import prefill_tiles

pytest.importorskip("triton", reason="not run here: no triton")


def run(case, prefill=module.paged_prefill, **options):
    options = {"tiles": small_tiles(64, 32), "return_lse": True, "max_query_len": max(case.query_lens), **options}
    return prefill(case.q, *case.cache, case.cu_query_lens, scale=case.scale, **case.scales, **options)


def check_point(point, query_lens, cached):
    """Chunks of `query_lens` tokens after `cached` tokens that are in pages already."""
    case = make_case(
        [q + c for q, c in zip(query_lens, cached, strict=True)], query_lens, heads=point.heads,
        head_dim=point.head_dim, page=point.page, dtype=point.dtype, kv_format=point.kv_format, device=HERE,
    )  # fmt: skip
    got = run(case, window=point.window, num_sinks=point.num_sinks, tiles=None)
    assert_attention(got, attention_oracle(case, point.window, point.num_sinks))


def check_chunks(point):
    """Around tiles of queries and of keys, without and with cached tokens."""
    check_point(point, [1, 5, 129, 0, 64, 2], [point.page - 1, 0, 65, 3, 64, 1100])


@pytest.mark.parametrize("point", grid_points("prefill", 2), ids=str)
def test_every_pair_of_values(point):
    check_chunks(point)


@of_the_whole_grid
@pytest.mark.parametrize("points", grid_slices("prefill"))
def test_whole_grid(points, subtests):
    for point in points:
        with subtests.test(str(point)):
            check_chunks(point)


@pytest.mark.parametrize(("window", "num_sinks"), [*WINDOWS, (1, 0), (1, 3), (40, 200), (64, 64)])
def test_windows(window, num_sinks):
    """All four ranges of keys (sinks, the window's edge, full tiles, the diagonal) with several tiles each."""
    case = make_case([150, 129, 70], [100, 129, 3], device=HERE)
    assert_attention(run(case, window=window, num_sinks=num_sinks), attention_oracle(case, window, num_sinks))


@pytest.mark.full
@pytest.mark.parametrize(("window", "num_sinks"), WINDOWS)
def test_long_chunks(window, num_sinks):
    case = make_case([2011, 700, 129], [129, 700, 1], heads=(3, 1), device=HERE)
    assert_attention(run(case, window=window, num_sinks=num_sinks), attention_oracle(case, window, num_sinks))


def test_default_tiles():
    case = make_case([150, 129], [20, 129], heads=(9, 3), device=HERE)
    for max_query_len in (129, 4096):
        assert_attention(run(case, tiles=None, max_query_len=max_query_len), attention_oracle(case))


def test_reference_equals_oracle():
    case = make_case([65, 30, 4], [10, 30, 0], kv_format="fp8_e4m3", device=HERE)
    got = run(case, paged_attention_reference, window=24, num_sinks=5)
    assert_attention(got, attention_oracle(case, 24, 5))


def test_many_tiny_chunks():
    """More chunks than query blocks, some empty, first and last too: each program must find its own."""
    query_lens = [0, 1, 0, 0, 17, 1, 2, 16, 0, 33, 1, 1, 0]
    case = make_case([n + s for s, n in enumerate(query_lens)], query_lens, device=HERE)
    assert_attention(run(case), attention_oracle(case))


# What must not change the result.


@pytest.mark.parametrize("options", [{}, {"window": 24, "num_sinks": 5}])
def test_chunked_equals_one_shot(options):
    """Tokens [0, 100) in one chunk, or in chunks of 1, 31, 36 and 32 tokens over the same pages."""
    case = make_case([100], [100], device=HERE)
    want, want_lse = run(case, **options)
    for start, end in [(0, 1), (1, 32), (32, 68), (68, 100)]:
        got, got_lse = module.paged_prefill(
            case.q[start:end], case.k_cache, case.v_cache, case.block_tables,
            torch.tensor([end], dtype=torch.int32, device=HERE),
            torch.tensor([0, end - start], dtype=torch.int32, device=HERE),
            max_query_len=end - start, scale=case.scale, tiles=small_tiles(64, 32), return_lse=True, **options,
        )  # fmt: skip
        assert_attention((got, got_lse), (want[start:end].double(), want_lse[start:end].double()))


@pytest.mark.parametrize("kv_format", ["none", "int8"])
@pytest.mark.parametrize("options", [{}, {"window": 24, "num_sinks": 5}])
def test_prefill_of_one_token_is_decode(kv_format, options):
    case = make_case([100, 1, 33], kv_format=kv_format, device=HERE)
    want = paged_decode(case.q, *case.cache, scale=case.scale, **case.scales, return_lse=True, **options)
    assert_attention(run(case, **options), tuple(x.double() for x in want))


def test_page_order_does_not_matter():
    a, b = (make_case([100, 33], [50, 33], device=HERE, page_seed=seed) for seed in (1, 2))
    assert not torch.equal(a.block_tables, b.block_tables)
    for x, y in zip(run(a), run(b), strict=True):
        assert torch.equal(x, y)


def test_result_does_not_depend_on_the_rest_of_the_batch():
    """Bitwise: a chunk's query blocks start at its first token wherever it lies in the batch."""
    case = make_case([40, 90, 7], [9, 60, 7], device=HERE)
    together, _ = run(case)
    alone = module.paged_prefill(
        case.q[9:69], case.k_cache, case.v_cache, case.block_tables[1:2], case.seq_lens[1:2],
        torch.tensor([0, 60], dtype=torch.int32, device=HERE),
        max_query_len=60, scale=case.scale, tiles=small_tiles(64, 32),
    )  # fmt: skip
    assert torch.equal(alone, together[9:69])


def test_strided_queries_and_rows_of_nobody():
    """q as a view of the fused projection; rows after the last chunk are neither read nor written."""
    case = make_case([40, 20], [20, 20], device=HERE)
    fused = torch.full((45, 8, 64), math.nan, device=HERE)
    fused[:40, :4] = case.q
    out = torch.full((45, 4, 64), 7.0, device=HERE)
    got = module.paged_prefill(
        fused[:, :4], *case.cache, case.cu_query_lens, max_query_len=20, scale=case.scale, out=out,
        tiles=small_tiles(64, 32),
    )  # fmt: skip
    assert got is out
    assert_close(out[:40], attention_oracle(case)[0], TOLERANCE[torch.float32])
    assert (out[40:] == 7).all()


def test_nothing_to_do():
    case = make_case([5, 3], [0, 0], device=HERE)
    out, lse = run(case, max_query_len=1)
    assert out.shape == (0, 4, 64)
    assert lse.shape == (0, 4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # a prototype, torch says
def test_no_host_sync():
    case = make_case([300, 5], [100, 5], device="cuda")
    run(case)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(case)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# Heuristics and counts.


def test_tiles_hold_the_group():
    generations = ("cpu", "ampere", "ada", "hopper", "cdna")
    dtypes, formats = (torch.float32, torch.bfloat16), ("none", "int8")
    for generation, dtype, kv_format, head_dim in itertools.product(generations, dtypes, formats, (64, 128, 256)):
        for max_query_len in (1, 1000):
            assert prefill_tiles(71, head_dim, dtype, kv_format, True, max_query_len, generation).block_m >= 71
    sizes = [prefill_tiles(4, 128, torch.bfloat16, "none", False, n, "hopper").block_m for n in (1, 4, 5, 16, 17)]
    assert sizes == [16, 16, 64, 64, 128]


def test_tiles_of_128_keys():
    """On Hopper, for long chunks, where registers and shared memory hold them; elsewhere nowhere."""
    keys = functools.partial(prefill_tiles, 4, dtype=torch.bfloat16, max_query_len=2048)
    usual = {"kv_format": "none", "has_window": False, "generation": "hopper"}
    assert [keys(head_dim=d, **usual).block_n for d in (64, 80, 96, 128, 256)] == [64, 128, 128, 128, 32]
    for change in ({"kv_format": "int8"}, {"has_window": True}, {"generation": "ampere"}, {"max_query_len": 16}):
        assert keys(head_dim=128, **usual | change).block_n <= 64, change


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
    args = {"cu_query_lens": case.cu_query_lens, "max_query_len": 20, "scale": 1.0} | options
    with pytest.raises(ValueError, match=message):
        module.paged_prefill(case.q, *case.cache, **args)
