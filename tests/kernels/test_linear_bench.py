"""The rows of `bench kernels` for weights of fewer bits: on any machine the contenders are compared, none is timed."""

import dataclasses

import pytest
import torch

from tests.kernels.cases import HERE
from tests.mutation import KillTable, Mutant
from twophase_tools.bench import kernel_linears as module
from twophase_tools.bench.kernel_cases import FULL, QUICK, TOLERANCES, CaseTable
from twophase_tools.bench.kernel_variants import OURS, REFERENCE
from twophase_tools.bench.kernel_work import Work
from twophase_tools.bench.kernels import measure_case

pytest.importorskip("triton", reason="not run here: no triton")

DEVICE = torch.device(HERE)
DTYPE = torch.bfloat16 if HERE == "cuda" else torch.float32
KERNELS = ["int4_linear", "int8_linear", "fp8_linear", "quantise_tokens"]


def cases(module=module):
    return module.Layer(5, 64, 256, 64, DTYPE, DEVICE).cases(TOLERANCES[DTYPE])


def measured(module):
    return {case.kernel: measure_case(case, None) for case in cases(module)}


def check_contenders(module):
    for result in measured(module).values():
        problems = list(result.problems)
        assert problems == [], problems[0]


def test_contenders_compute_the_same():
    check_contenders(module)
    results = measured(module)
    assert list(results) == KERNELS
    rivals = {kernel: [v.name for v in result.variants] for kernel, result in results.items()}
    assert rivals == {
        "int4_linear": [OURS, "torch int4pack", module.DENSE, REFERENCE],
        "int8_linear": [OURS, "torch int8pack", module.DENSE, REFERENCE],
        "fp8_linear": [OURS, "torch _scaled_mm", module.DENSE, REFERENCE],
        "quantise_tokens": [OURS, "torch eager"],
    }
    if HERE == "cpu":
        assert all(v.difference is not None for result in results.values() for v in result.variants[1:])
        assert all(v.elapsed_s is None for result in results.values() for v in result.variants)
        assert "not run here: needs CUDA" in {v.not_run for result in results.values() for v in result.variants}


def test_what_torch_does_not_take_is_no_problem():
    def refuse():
        raise RuntimeError("expected bfloat16. Got another.")

    with pytest.raises(NotImplementedError, match="expected bfloat16"):
        module.if_taken(refuse)
    found = measure_case(dataclasses.replace(next(cases()), make_variants=lambda: rivals_that(refuse)), None)
    assert [(v.status, v.not_run) for v in found.variants[1:2]] == [
        ("unavailable", "not run: NotImplementedError: expected bfloat16")
    ]
    assert list(found.problems) == []


def rivals_that(refuse):
    ours = module.Variant(lambda: torch.ones(2))
    return {OURS: lambda: ours, "refuses": lambda: module.if_taken(refuse), "agrees": lambda: ours}


def test_the_table_has_them():
    """Gate and up, and down, of Llama-3-8B, for one token and more."""
    labels = {f"{case.kernel} {case.label}" for case in CaseTable(FULL, torch.bfloat16, torch.device("cpu"))}
    for num_tokens in FULL.linear_tokens:
        for kernel in KERNELS[:3]:
            assert f"{kernel} 28,672 x 4,096, {num_tokens} tokens" in labels
            assert f"{kernel} 4,096 x 14,336, {num_tokens} tokens" in labels
        assert f"quantise_tokens {num_tokens} x 4,096" in labels
    quick = [case for case in CaseTable(QUICK, torch.float32, torch.device("cpu")) if case.kernel in KERNELS]
    assert len(quick) == len(KERNELS) * 2 * len(QUICK.linear_tokens)
    assert all(case.only_reads == (case.kernel != "quantise_tokens") for case in quick)


def test_bytes_of_a_product():
    case = next(module.Layer(1, 4096, 4096, 128, torch.bfloat16, torch.device("cpu")).cases(0.0))
    assert case.work == Work(4096 * 2048 + 2 * 4096 * 32 * 4 + 2 * 4096 * 2, 2 * 4096**2)


MUTANTS = [
    ("torch's zeros elsewhere", "zeros.float() - 8 * scales.float()", "zeros.float() - 7 * scales.float()"),
    ("scales for zeros", "torch.stack([scales, zeros], dim=-1)", "torch.stack([scales, scales], dim=-1)"),
    ("dense without minima", "return scaled + minima.T.repeat_interleave(self.group, dim=1)", "return scaled"),
    ("another group's scales", "scales.float().T.repeat_interleave(self.group, dim=1)", "scales.float().T.repeat(1, self.group)"),
    ("dense bytes without scales", "dense_variant(x, codes * scales.float()[:, None])", "dense_variant(x, codes.float())"),
    ("other codes", "torch._weight_int8pack_mm(x, codes, scales)", "torch._weight_int8pack_mm(x, codes.flip(0), scales)"),
    ("one scale of x", "x, weight.T, rows, columns,", "x, weight.T, rows[:1].expand(len(x), 1).contiguous(), columns,"),
    ("x without scales", "(x.float() * rows).to(dtype)", "x.to(dtype)"),
    ("twice the tokens", "Variant(lambda: quantise_tokens_reference(x), dequantised)", "Variant(lambda: quantise_tokens_reference(2 * x), dequantised)"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.skipif(HERE == "cuda", reason="a planted bug's products need no GPU")
@pytest.mark.parametrize(
    "mutant", [Mutant(name, module.__name__, old, new) for name, old, new in MUTANTS], ids=lambda mutant: mutant.name
)
def test_mutants_are_killed(mutant):
    KillTable.record(mutant, check_contenders)
