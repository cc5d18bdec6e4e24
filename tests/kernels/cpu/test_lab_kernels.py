"""The kernels of the labs, as their solutions have them."""

import ast
import importlib
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import triton_on_cpu
from tests.kernels.cases import DTYPES
from twophase_kernels.attend_range import paged_attention_reference
from twophase_kernels.rmsnorm_residual import rmsnorm_residual_reference
from twophase_kernels.rope_kv_write import kv_write_reference

pytest.importorskip("triton", reason="not run here: no triton")

REPOSITORY = Path(__file__).parents[3]


def kernels_of(lab, folder):
    """A module of the kernels of a solution. (A notebook's other cells would run the whole lab.)"""
    source = (REPOSITORY / "labsolutions" / f"{lab}.py").read_text()
    lines = source.splitlines()
    parts = ["import triton", "import triton.language as tl", "from twophase_labs.decode.attend_tiles import *"]
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list):
            first = min(d.lineno for d in node.decorator_list)
            parts += ["", "", *lines[first - 1 : node.end_lineno]]
        elif isinstance(node, ast.Assign) and "constexpr" in ast.unparse(node):
            parts.append(ast.unparse(node))
    (Path(folder) / f"kernels_{lab}.py").write_text("\n".join(parts) + "\n")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(f"kernels_{lab}")


def relative_error(got, want):
    return ((got.float() - want.float()).abs().max() / want.float().abs().max()).item()


def merged(partial, lse):
    """Splits [B, H, S, D] weighted by their sums of exponentials [B, H, S], given as logarithms of base 2."""
    weights = torch.where(lse == -torch.inf, 0, torch.exp2(lse - lse.amax(-1, keepdim=True)))
    return torch.einsum("bhs,bhsd->bhd", weights / weights.sum(-1, keepdim=True), partial.float().nan_to_num())


def check_lab_kernels(folder, dtype, lengths=(37, 1, 130), query_lengths=(5, 1, 40)):
    """Labs 2 and 3 against the references, over ragged sequences in a cache poisoned with NaN."""
    from twophase_labs.decode.launch import launch_paged_decode, launch_paged_decode_split
    from twophase_labs.prefill.launch import launch_add_rmsnorm, launch_kv_write, launch_paged_prefill

    torch.manual_seed(0)
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    lab2, lab3 = kernels_of("02_prefill", folder), kernels_of("03_decode", folder)
    x, residual, weight = (torch.randn(*shape, dtype=dtype) for shape in ((7, 576), (7, 576), (576,)))
    got = launch_add_rmsnorm(lab2.add_rmsnorm_kernel, x, residual, weight, 1e-5)
    for one, want in zip(got, rmsnorm_residual_reference(x, residual, weight, 1e-5), strict=True):
        assert relative_error(one, want) < limit

    heads, kv_heads, head_dim, page = 8, 2, 40, 4
    num_pages = [-(-length // page) for length in lengths]
    pages = torch.randperm(sum(num_pages) + 3, dtype=torch.int32)
    tables = torch.zeros(3, 16 * -(-max(num_pages) // 16), dtype=torch.int32)
    for row, own in zip(tables, pages.split([*num_pages, 3]), strict=False):
        row[: len(own)] = own
    caches = [torch.full((len(pages), kv_heads, page, head_dim), float("nan"), dtype=dtype) for _ in range(4)]
    k, v = (torch.randn(sum(lengths), kv_heads, head_dim, dtype=dtype) for _ in range(2))
    at = [torch.arange(length) for length in lengths]
    slots = torch.cat([row[i // page].long() * page + i % page for row, i in zip(tables, at, strict=True)])
    launch_kv_write(lab2.kv_write_kernel, k, v, *caches[:2], slots)
    kv_write_reference(k, v, *caches[2:], slots)
    for got, want in zip(caches[:2], caches[2:], strict=True):
        assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))

    seq_lens, scale = torch.tensor(lengths, dtype=torch.int32), head_dim**-0.5
    starts = torch.tensor([0, *query_lengths]).cumsum(0).int()
    q = torch.randn(sum(query_lengths), heads, head_dim, dtype=dtype)
    got = launch_paged_prefill(lab2.paged_prefill_kernel, q, *caches[:2], tables, seq_lens, starts, scale)
    want = paged_attention_reference(q, *caches[2:], tables, seq_lens, starts, scale=scale, return_lse=True)
    assert relative_error(got[0], want[0]) < limit
    q = torch.randn(3, heads, head_dim, dtype=dtype)
    want = paged_attention_reference(q, *caches[2:], tables, seq_lens, scale=scale)
    assert (
        relative_error(launch_paged_decode(lab3.paged_decode_kernel, q, *caches[:2], tables, seq_lens, scale), want)
        < limit
    )
    parts = launch_paged_decode_split(lab3.paged_decode_split_kernel, q, *caches[:2], tables, seq_lens, scale, 4)
    assert relative_error(merged(*parts), want) < limit


def check_int4_kernel(folder):
    """Lab 6's product of packed 4-bit weights against the same weights in fp64."""
    from twophase_labs.compression.int4_launch import launch_int4_linear, pack_words

    lab6 = kernels_of("06_compression", folder)
    codes = torch.randint(16, (100, 192), generator=torch.Generator().manual_seed(0))
    for dtype, limit in ((torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
        x, scales, minima = (torch.randn(*shape, dtype=dtype) for shape in ((3, 192), (100, 3), (100, 3)))
        got = launch_int4_linear(lab6.int4_linear_kernel, x, pack_words(codes), scales, minima, block_o=32)
        weight = codes.double().unflatten(1, (3, 64)) * scales.double()[..., None] + minima.double()[..., None]
        assert relative_error(got, x.double() @ weight.flatten(1).T) < limit


def with_compiler(is_checked, check, *args):
    triton_on_cpu.install()
    with triton_on_cpu.checked() if is_checked else nullcontext():
        check(*args)


@pytest.mark.parametrize("dtype", [DTYPES[0], *(pytest.param(each, marks=pytest.mark.full) for each in DTYPES[1:])])
def test_labs_2_and_3(compiling, dtype, tmp_path):
    compiling.call(with_compiler, dtype == torch.float32, check_lab_kernels, str(tmp_path), dtype)


def test_lab_6(compiling, tmp_path):
    compiling.call(with_compiler, True, check_int4_kernel, str(tmp_path))
