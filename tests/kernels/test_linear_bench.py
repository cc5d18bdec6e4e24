"""The rows of `bench kernels` for weights of fewer bits: on any machine the contenders are compared, none is timed."""

import pytest
import torch

from twophase_tools.bench import kernel_linears
from twophase_tools.bench.kernel_cases import TOLERANCES
from twophase_tools.bench.kernels import measure_case

pytest.importorskip("triton", reason="not run here: no triton")


def test_contenders():
    for case in kernel_linears.Layer(5, 64, 256, 64, torch.float32, torch.device("cpu")).cases(
        TOLERANCES[torch.float32]
    ):
        assert list(measure_case(case, None).problems) == []
