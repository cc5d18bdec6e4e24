"""The rows of `bench kernels` for weights of fewer bits: on any machine the contenders are compared, none is timed."""

import pytest
import torch

from tests.kernels.cases import HERE
from tests.mutation import KillTable, Mutant
from twophase_tools.bench import kernel_linears as module
from twophase_tools.bench.kernel_cases import TOLERANCES
from twophase_tools.bench.kernels import measure_case

pytest.importorskip("triton", reason="not run here: no triton")

DEVICE = torch.device(HERE)
DTYPE = torch.bfloat16 if HERE == "cuda" else torch.float32


def check_contenders(module):
    for case in module.Layer(5, 64, 256, 64, DTYPE, DEVICE).cases(TOLERANCES[DTYPE]):
        problems = list(measure_case(case, None).problems)
        assert problems == [], problems[0]


MUTANTS = [
    ("torch's zeros elsewhere", "zeros.float() - 8 * scales.float()", "zeros.float() - 7 * scales.float()"),
    ("another group's scales", "scales.float().T.repeat_interleave(self.group, dim=1)", "scales.float().T.repeat(1, self.group)"),
    ("other codes", "torch._weight_int8pack_mm(x, codes, scales)", "torch._weight_int8pack_mm(x, codes.flip(0), scales)"),
    ("twice the tokens", "Variant(lambda: quantise_tokens_reference(x), dequantised)", "Variant(lambda: quantise_tokens_reference(2 * x), dequantised)"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.skipif(HERE == "cuda", reason="a planted bug's products need no GPU")
@pytest.mark.parametrize(
    "mutant", [Mutant(name, module.__name__, old, new) for name, old, new in MUTANTS], ids=lambda mutant: mutant.name
)
def test_mutants_are_killed(mutant):
    KillTable.record(mutant, check_contenders)
