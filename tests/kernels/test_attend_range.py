"""What decode and prefill share: the reference, what must not change a result, quantised values of any size."""

import functools
from dataclasses import replace

import pytest
import torch

from tests.kernels.attention_grid import small_tiles
from tests.kernels.cases import (
    HERE,
    assert_attention,
    attend,
    attend_ragged,
    attention_oracle,
    check_attention,
    make_case,
)
from twophase_kernels import paged_decode, paged_prefill
from twophase_kernels.attend_range import paged_attention_reference

pytest.importorskip("triton", reason="not run here: no triton")

DECODE, FEW = (functools.partial(how, paged_decode.paged_decode) for how in (attend, attend_ragged))
PREFILL = functools.partial(attend_ragged, paged_prefill.paged_prefill, tiles=small_tiles(64, 32))


@pytest.mark.parametrize(
    ("query_lens", "kv_format"), [(None, "int8"), ([4, 0, 1, 20], "int8"), ([10, 0, 0, 20], "fp8_e4m3")]
)
def test_reference_equals_oracle(query_lens, kv_format):
    case = make_case([65, 0, 1, 20], query_lens, kv_format=kv_format, device=HERE)
    how = attend if query_lens is None else attend_ragged
    check_attention(how, paged_attention_reference, case, window=24, num_sinks=5)


@pytest.mark.parametrize(
    ("kernel", "seq_lens", "query_lens", "heads"),
    [
        (functools.partial(DECODE, deterministic=True), [1100, 40, 513], None, (4, 2)),
        (functools.partial(FEW, deterministic=True), [1100, 600], [5, 3], (3, 1)),
        (PREFILL, [40, 90, 7], [9, 60, 7], (4, 2)),
    ],
    ids=["decode", "few", "prefill"],
)
def test_a_result_does_not_depend_on_the_rest_of_the_batch(kernel, seq_lens, query_lens, heads):
    """Bitwise: a chunk's query blocks start at its first token, and the chunks of deterministic decode are fixed."""
    case = make_case(seq_lens, query_lens, heads=heads, device=HERE)
    together = kernel(case)
    assert_attention(together, attention_oracle(case))
    rows = together[0].split(case.query_lens), together[1].split(case.query_lens)
    for s, *want in zip(range(len(seq_lens)), *rows, strict=True):
        for x, y in zip(kernel(case.alone(s)), want, strict=True):
            assert torch.equal(x, y)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # a prototype, torch says
@pytest.mark.parametrize(
    ("kernel", "query_lens"), [(functools.partial(DECODE, num_splits=3), None), (PREFILL, [100, 5, 0])]
)
def test_no_host_sync(kernel, query_lens):
    case = make_case([300, 5, 0], query_lens, device="cuda")
    kernel(case)
    torch.cuda.set_sync_debug_mode("error")
    try:
        kernel(case)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_small_values(module, kv_format, value_std):
    """fp16 queries over quantised values of any size: weights times their scales must not run out of fp16's bits."""
    case = make_case([33, 2], [3, 2], heads=(6, 2), kv_format=kv_format, dtype=torch.float16, device=HERE)
    dense = [(k, v * value_std) for k, v in case.dense]
    case = replace(case, v_scale=case.v_scale * value_std, dense=dense)
    want, _ = attention_oracle(case)
    if hasattr(module, "paged_prefill"):
        got, _ = attend_ragged(module.paged_prefill, case, tiles=small_tiles(16, 32))
    else:
        last, want = [2, 4], want[[2, 4]]
        got, _ = attend(module.paged_decode, case, q=case.q[last], num_splits=1, tiles=small_tiles(16, 32))
    error = ((got.double().cpu() - want).norm() / want.norm()).item()
    assert error < 1e-3, f"relative error {error:.1e}"  # weights and output are rounded to fp16, 4.9e-4 each


@pytest.mark.parametrize("value_std", [1e3, 1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("kv_format", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("module", [paged_decode, paged_prefill])
def test_quantised_values_may_be_small(module, kv_format, value_std):
    check_small_values(module, kv_format, value_std)
