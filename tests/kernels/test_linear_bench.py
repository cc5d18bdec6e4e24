"""The rows of `bench kernels` for weights of fewer bits: on any machine the contenders are compared, none is timed."""

import pytest
import torch

from tests.kernels.planting import noticing
from twophase_tools.bench.kernel_cases import TOLERANCES
from twophase_tools.bench.kernels import measure_case

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a planted bug's products need no GPU")


def check_contenders(module):
    for case in module.Layer(5, 64, 256, 64, torch.float32, torch.device("cpu")).cases(TOLERANCES[torch.float32]):
        assert list(measure_case(case, None).problems) == []


MUTANTS = {
    ("kernel_linears",): [
        ("torch's zeros elsewhere", "zeros.float() - 8 * scales.float()", "zeros.float() - 7 * scales.float()", check_contenders),
        ("another group's scales", "scales.float().T.repeat_interleave(self.group, dim=1)", "scales.float().T.repeat(1, self.group)", check_contenders),
        ("other codes", "torch._weight_int8pack_mm(x, codes, scales)", "torch._weight_int8pack_mm(x, codes.flip(0), scales)", check_contenders),
        ("twice the tokens", "Variant(lambda: quantise_tokens_reference(x), dequantised)", "Variant(lambda: quantise_tokens_reference(2 * x), dequantised)", check_contenders),
    ],
}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS, "twophase_tools.bench")
