"""merge_splits: softmax over a union of keys from softmaxes over its parts."""

import math

import pytest
import torch

from tests.kernels.cases import HERE, assert_attention, generator
from twophase_kernels import merge_splits as module

pytest.importorskip("triton", reason="not run here: no triton")


def partials_of(num_splits, head_dim=64, keys_per_split=5, rows=(2, 3)):
    """(partial, LSE) of each split of random keys, and (out, LSE) over all of them; fp64 until the very end."""
    rng = generator(0)
    scores = 6 * torch.randn(*rows, num_splits, keys_per_split, generator=rng, dtype=torch.float64)
    values = torch.randn(*rows, num_splits, keys_per_split, head_dim, generator=rng, dtype=torch.float64)
    partial = torch.einsum("bhsk,bhskd->bhsd", scores.softmax(-1), values)
    lse = scores.logsumexp(-1) / math.log(2)
    out = torch.einsum("bhn,bhnd->bhd", scores.flatten(2).softmax(-1), values.flatten(2, 3))
    total = scores.flatten(2).logsumexp(-1) / math.log(2)
    return (partial.float().to(HERE), lse.float().to(HERE)), (out, total)


def merged(partial, partial_lse, module=module, dtype=torch.float32):
    """(out, LSE) of partial [B, H, S, D], written over NaN."""
    out = torch.full_like(partial[:, :, 0], math.nan, dtype=dtype)
    lse = torch.full_like(partial_lse[:, :, 0], math.nan)
    module.merge_splits(partial, partial_lse, out, lse, partial.shape[2])
    return out, lse


def check_merge(module, num_splits, head_dim):
    inputs, want = partials_of(num_splits, head_dim)
    assert_attention(merged(*inputs, module), want)


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 16, 17, 128])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_merge(num_splits, head_dim):
    check_merge(module, num_splits, head_dim)


def test_empty_splits_weigh_nothing_and_are_not_read():
    (partial, lse), _ = partials_of(6)
    empty = torch.tensor([True, False, True, False, False, True], device=HERE)
    want = merged(partial[:, :, ~empty].contiguous(), lse[:, :, ~empty].contiguous())
    partial[:, :, empty], lse[:, :, empty] = math.nan, -math.inf
    assert_attention(merged(partial, lse), (want[0].double(), want[1].double()))
    # A row without any key.
    lse[1, 2] = -math.inf
    out, total = merged(partial, lse)
    assert torch.equal(out[1, 2], torch.zeros_like(out[1, 2]))
    assert total[1, 2] == -math.inf
    assert out.isfinite().all()
