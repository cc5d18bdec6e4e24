"""paged_decode against a naive fp64 oracle; what must not change its result; and what it must refuse."""

import functools
import math
from dataclasses import replace

import pytest
import torch

from tests.kernels.attention_grid import grid_points, three_values
from tests.kernels.cases import (
    HERE,
    TOLERANCE,
    assert_close,
    attend,
    attend_ragged,
    attention_oracle,
    check_attention,
    make_case,
)
from twophase_kernels import paged_decode as module
from twophase_kernels._triton import tl, triton
from twophase_kernels.attend_range import Tiles, paged_attention_reference
from twophase_kernels.paged_decode import choose_num_splits

pytest.importorskip("triton", reason="not run here: no triton")

check = functools.partial(check_attention, attend, module.paged_decode)
check_ragged = functools.partial(check_attention, attend_ragged, module.paged_decode)


@pytest.fixture
def small_gpu(monkeypatch):
    """Any two sequences fill a GPU of one multiprocessor, and so are split by length. (A CPU counts as such a GPU.)"""
    monkeypatch.setattr(module, "num_multiprocessors", lambda device: 1)


def check_lengths(point, seq_lens=None, **options):
    """Around pages and tiles, from none to more than a window; more splits than tiles, too."""
    page = point.page
    case = point.case(seq_lens or [1, page - 1, page, page + 1, 63, 64, 65, 127, 128, 129, 0, 1100])
    check(case, num_splits=point.num_splits, **point.windows, **options)


def check_few(point, seq_lens=None, query_lens=None):
    """Drafts to verify: no token, one, as many as the tile holds, all tokens of a sequence."""
    most = min(9, module.max_rows(point.head_dim) // point.group)
    case = point.case(seq_lens or [5, point.page + 1, 129, most], query_lens or [0, 1, most, most])
    check_ragged(case, num_splits=point.num_splits, **point.windows)


CHECKS = {"decode": check_lengths, "few": check_few}


def points(strength):
    return pytest.mark.parametrize(
        ("name", "point"), [(name, p) for name in CHECKS for p in grid_points(name, strength)], ids=str
    )


@points(1)
def test_each_value(name, point):
    CHECKS[name](point)


@three_values
@points(3)
def test_every_three_values(name, point):
    CHECKS[name](point)


# What must not change the result.


def test_a_wrong_bound_on_lengths_loses_no_token():
    case = make_case([700, 600, 3], heads=(2, 1), device=HERE)
    for options in ({"deterministic": True}, {"deterministic": True, "window": 550}, {}):
        check(case, max_seq_len=20, **options)


def test_no_sequences():
    case = make_case([5], device=HERE)
    nothing = case.q[:0], *case.cache[:2], case.block_tables[:0], case.seq_lens[:0]
    out, lse = module.paged_decode(*nothing, scale=1.0, num_splits=2, return_lse=True)
    assert (out.shape, lse.shape) == ((0, 4, 64), (0, 4))


# Several tokens per sequence: drafts to verify.


@pytest.mark.usefixtures("small_gpu")
def test_windows_of_few_tokens_at_the_edge_of_a_chunk():
    """A window as long as a chunk: the keys of all tokens' windows together are one chunk more, or are not."""
    case = make_case([1100, 600, 514, 0], [5, 4, 3, 0], heads=(3, 1), device=HERE)
    for window in (508, 510, 512, 513):
        check_ragged(case, window=window)


@pytest.mark.usefixtures("small_gpu")
@pytest.mark.parametrize("num_splits", [1, 3, None])
def test_few_tokens_padded_like_a_graph(num_splits):
    """A sequence of length 0 with a token, which gives zeros; tokens of no sequence, whose rows are left alone."""
    case = make_case([700, 9], [3, 1], heads=(3, 1), device=HERE)
    q = torch.cat([case.q, torch.full((6, 3, 64), math.nan, device=HERE)])
    q[4] = 1
    tables = torch.cat([case.block_tables, case.block_tables[:1]])
    lens = torch.cat([case.seq_lens, case.seq_lens[:1] * 0])
    bounds = torch.cat([case.cu_query_lens, case.cu_query_lens[-1:] + 1])
    for function in (module.paged_decode, paged_attention_reference):
        out = torch.full_like(q, 7.0)
        options = {"max_query_len": 4, "scale": case.scale, "num_splits": num_splits}
        function(q, *case.cache[:2], tables, lens, bounds, out=out, **options)
        assert_close(out[:4], attention_oracle(case)[0], TOLERANCE[torch.float32])
        assert (out[4] == 0).all()
        assert (out[5:] == 7).all()


# Heuristics and counts.


def test_choose_num_splits():
    h200 = functools.partial(choose_num_splits, num_sms=132)
    assert h200(64, 8, num_keys=8192) == 1  # 512 programs fill 132 SMs
    assert h200(33, 8, num_keys=8192) == 1  # 264: just twice
    assert h200(8, 8, num_keys=8192) == 4  # 264 // 64 = 4
    assert h200(1, 8, num_keys=32768) == 32  # 264 // 8 = 33, down to a power of two
    assert h200(1, 8, num_keys=1024) == 8  # no split shorter than two tiles
    assert h200(1, 1, num_keys=10**6) == 128
    assert h200(1, 8, num_keys=1) == 1
    assert choose_num_splits(0, 8, 100, num_sms=1) == 1


# What is refused.


def case_with(**changes):
    case = make_case([20, 3], device=HERE)
    args = dict(zip(("q", "k_cache", "v_cache", "block_tables", "seq_lens"), (case.q, *case.cache), strict=True))
    return args | {"scale": 0.125} | {name: change(case) for name, change in changes.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": lambda c: c.q[:1]}, "one query per sequence, got 1 and 2"),
        ({"q": lambda c: c.q[:, :3]}, "multiple of H_kv, got 3 query heads and 2"),
        ({"q": lambda c: c.q.double()}, "q must be float32 or float16 or bfloat16"),
        ({"k_cache": lambda c: c.k_cache[:, :1].contiguous()}, r"v_cache must be contiguous float32 \[N=\d+, H_kv=1,"),
        ({name: lambda c: c.k_cache[:, :, :9].contiguous() for name in ("k_cache", "v_cache")}, "power of two, got 9"),
        ({"k_scale": lambda c: torch.ones(1, device=HERE)}, "others take none; got torch.float32, k_scale given"),
        ({"block_tables": lambda c: c.block_tables[:, :8]}, "multiple of 16"),
        ({"block_tables": lambda c: c.block_tables[:1]}, r"block_tables must be int32 \[S=2, W\], contiguous from W on"),
        ({"seq_lens": lambda c: c.seq_lens.long()}, "seq_lens must be contiguous int32"),
        ({"scale": lambda c: math.nan}, "scale must be positive"),
        ({"window": lambda c: 0}, "window must be at least 1"),
        ({"num_sinks": lambda c: -1}, "num_sinks must be at least 0"),
        ({"num_splits": lambda c: 2, "deterministic": lambda c: True}, "leave out num_splits"),
        ({"num_splits": lambda c: 0}, "num_splits must be at least 1"),
        ({"out": lambda c: torch.empty(2, 4, 32, device=HERE)}, "out must be contiguous"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)  # fmt: skip
def test_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        module.paged_decode(**case_with(**changes))


def test_refuses_few_tokens_and_rows():
    case = make_case([9, 4], [3, 2], heads=(4, 2), device=HERE)
    for options, message in (
        ({"max_query_len": 0}, "must be positive"),
        ({"max_query_len": 9, "tiles": Tiles(16, 64, 4, 3)}, "at most 16, got 9; paged_prefill takes longer ones"),
        ({"max_query_len": 33}, "at most 64, got 33"),
        ({"cu_query_lens": None}, "one query per sequence, got 5 and 2 sequences, max_query_len 5"),
        ({"cu_query_lens": torch.tensor([0, 3, 5], device=HERE)}, "cu_query_lens must be contiguous int32"),
    ):
        with pytest.raises(ValueError, match=message):
            attend_ragged(module.paged_decode, case, **{"max_query_len": 5} | options)
    case = make_case([3], head_dim=20, dtype=torch.float16, device=HERE)
    with pytest.raises(ValueError, match=r"multiple of 16 bytes.* D=20 in torch\.float16 is 40 bytes"):
        attend(module.paged_decode, case)


def test_a_cache_of_another_float_type():
    """A model in fp32 may keep its cache in fp16."""
    case = make_case([70], dtype=torch.float16, device=HERE)
    check(replace(case, q=case.q.float()))


# Splits by length, in batches that fill the GPU.


RAGGED = [3, 1800, 0, 513, 512, 5]  # by their mean chunks of 512 keys, the fewest


@pytest.mark.usefixtures("small_gpu")
@pytest.mark.parametrize("query_lens", [None, [2, 5, 0, 3, 1, 4], [1, 8, 0, 0, 8, 5]], ids=str)
@pytest.mark.parametrize(
    ("kv_format", "dtype", "windows"),
    [
        ("none", torch.float32, {}),
        ("int8", torch.float16, {}),
        ("fp8_e4m3", torch.float16, {}),
        ("none", torch.float32, {"window": 600, "num_sinks": 4}),
    ],
)
def test_ragged_batches_are_split_by_length(kv_format, dtype, windows, query_lens):
    case = make_case(RAGGED, query_lens, heads=(2, 1), kv_format=kv_format, dtype=dtype, device=HERE)
    (check if query_lens is None else check_ragged)(case, **windows)


@triton.jit
def _find(seq_lens_ptr, items_ptr, out_ptr, num_seqs, find: tl.constexpr, WINDOW: tl.constexpr):
    i = tl.program_id(0)
    sequence, first_item, chunk_len = find(seq_lens_ptr, num_seqs, tl.load(items_ptr + i), WINDOW, 128, 64)
    tl.store(out_ptr + 3 * i, sequence)
    tl.store(out_ptr + 3 * i + 1, first_item)
    tl.store(out_ptr + 3 * i + 2, chunk_len)


def check_find(module, seq_lens, window=0):
    """Against a list of items, written out; its first, its last, those around each change of sequence."""
    visible = [min(n, window) if window else n for n in seq_lens]
    mean = -(-sum(visible) // len(visible))
    chunk_len = -(-max(mean, 128) // 64) * 64
    owners = [s for s, n in enumerate(visible) for _ in range(max(1, -(-n // chunk_len)))]
    assert len(owners) <= 2 * len(seq_lens)
    items = sorted(
        {0, 1, len(owners) - 1, len(owners), 2 * len(seq_lens) - 1, *range(125, 132)} & {*range(2 * len(seq_lens))}
    )
    out = torch.full((len(items), 3), -1, dtype=torch.int32, device=HERE)
    lens, chosen = (torch.tensor(x, dtype=torch.int32, device=HERE) for x in (seq_lens, items))
    _find[(len(items),)](lens, chosen, out, len(seq_lens), module.find_chunk, window)
    for item, (sequence, first_item, length) in zip(items, out.tolist(), strict=True):
        assert length == chunk_len
        if item < len(owners):
            assert (sequence, first_item) == (owners[item], owners.index(owners[item])), item
        else:
            assert sequence == len(seq_lens), item


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("seq_lens", [[900, 0, 1], [5], [1] * 128 + [4000], [4000] + [0] * 130], ids=len)
def test_find_chunk(seq_lens, window):
    """Also with more sequences than one step of the search looks at."""
    check_find(module, seq_lens, window)
