"""How columns are split, and the sum of partial results."""

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE, generator
from tests.kernels.covering import selected
from tests.kernels.elementwise import assert_rounded_once
from twophase_kernels import linear_splits as module
from twophase_kernels.linear_splits import LinearTiles

pytest.importorskip("triton", reason="not run here: no triton")


def check_sum(module, num_splits, shape=(3, 171), dtype=torch.float32, has_bias=True):
    rng = generator(0)
    partial = torch.randn(num_splits, *shape, generator=rng)
    bias = torch.randn(shape[1], generator=rng).to(dtype) if has_bias else None
    guard = 512  # a program's results
    guarded = torch.full((partial[0].numel() + 2 * guard,), 7.0, dtype=dtype, device=HERE)
    out = guarded[guard:-guard].view(shape)
    module.sum_splits(partial.to(HERE), None if bias is None else bias.to(HERE), out)
    want = partial.double().sum(0) + (0 if bias is None else bias.double())
    assert_rounded_once(out, want, 2.0**-23 * partial.double().abs().sum(0) + 1e-6, "sum")
    for outside in (guarded[:guard], guarded[-guard:]):
        assert (outside == 7).all(), "wrote outside of the result"


@pytest.mark.parametrize(("num_splits", "dtype"), selected((1, 2, 3, 16), DTYPES))
def test_sum(num_splits, dtype):
    check_sum(module, num_splits, dtype=dtype)
    check_sum(module, num_splits, (1, 1), dtype, has_bias=False)
    check_sum(module, num_splits, (2, 512), dtype)


def check_order(module):
    """fp32 forgets 1 beside 1e8: what is left tells in which order the four were added."""
    for terms, want in (([1e8, 1, -1e8, 1], 1), ([1, 1e8, -1e8, 1], 1), ([1e8, -1e8, 1, 1], 2), ([1, 1, 1e8, -1e8], 0)):
        partial = torch.tensor(terms, device=HERE).view(4, 1, 1).expand(4, 2, 5).contiguous()
        got = torch.empty(2, 5, device=HERE)
        module.sum_splits(partial, None, got)
        assert (got == want).all(), f"{terms} gave {got[0, 0].item()}"


def test_splits_are_added_in_their_order():
    check_order(module)


def check_choice(module):
    """Llama-3-8B's projections on an H100, 132 SMs; its output projection has 32 tiles of 32 steps."""

    def splits(tokens, outputs, inputs, block_t=8):
        return module.choose_num_splits(LinearTiles(128, block_t, 128, 4, 4), tokens, outputs, inputs, 132)

    assert splits(1, 4096, 4096) == 8, "16 would have two steps each"
    assert splits(1, 4096, 14336) == 16
    assert splits(1, 1024, 28672) == 16, "never more"
    assert splits(1, 6144, 14336) == 8, "48 tiles: 11 would make four programs per SM"
    assert splits(1, 16768, 4096) == 4, "131 tiles"
    assert splits(1, 16896, 4096) == 1, "132 tiles: each SM has one"
    assert splits(1, 128256, 4096) == 1, "1,002 tiles"
    assert splits(24, 4096, 4096) == 4, "3 tiles of tokens"
    assert splits(64, 4096, 14336, block_t=64) == 8, "two per SM"
    assert splits(1, 576, 576) == 1, "five steps"
    assert splits(1, 1, 256) == 1, "two steps"
    assert splits(0, 0, 576) == 1


def test_choice():
    check_choice(module)
