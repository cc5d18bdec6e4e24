"""merge_splits: softmax over a union of keys from softmaxes over its parts."""

import math

import pytest
import torch

from tests.kernels.cases import HERE, assert_attention, generator
from twophase_kernels import merge_splits as module

pytest.importorskip("triton", reason="not run here: no triton")


def check_merge(module, num_splits=20, head_dim=64, num_empty=3, offset=0):
    """Some splits have no key: they weigh nothing, and hold NaN. `offset` is added to each LSE."""
    rng = generator(0)
    lse = (offset + 4 * torch.randn(2, num_splits, generator=rng)).double()
    partial = torch.randn(2, num_splits, head_dim, generator=rng).double()
    lse[:, :num_empty] = -math.inf
    weight = torch.exp2(lse - offset)
    want = (weight[..., None] * partial).sum(1) / weight.sum(1, keepdim=True).clamp(min=1e-300)
    partial[:, :num_empty] = math.nan
    out, total = (torch.full(shape, math.nan, device=HERE) for shape in ((1, 2, head_dim), (1, 2)))
    module.merge_splits(partial[None].float().to(HERE), lse[None].float().to(HERE), out, total, num_splits)
    assert_attention((out[0], total[0]), (want, torch.log2(weight.sum(1)) + offset))


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 16, 17, 128])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_merge(num_splits, head_dim):
    for num_empty in {0, num_splits // 3, num_splits}:
        check_merge(module, num_splits, head_dim, num_empty)
