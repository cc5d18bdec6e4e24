"""Loops and branches, compiled: what they carry, and how often they turn."""

import pytest
import torch

from tests.kernels.cpu import small_kernels as kernels
from tests.kernels.cpu.harness import run

CHECKED = pytest.mark.parametrize("checked", [False, True], ids=["unchecked", "checked"])


@CHECKED
def test_while(checked):
    x = torch.tensor([1, 2, 7, 27], dtype=torch.int32)
    out = torch.zeros_like(x)
    assert run(kernels.collatz, x, out, grid=(4,), checked=checked) is None
    assert out.tolist() == [0, 1, 16, 111]


@CHECKED
@pytest.mark.parametrize("n", [0, 1, 7])
def test_carried_tensors_change_places(n, checked):
    out = torch.zeros(3, 16, dtype=torch.int32)
    run(kernels.fibonacci, out, n, N=16, checked=checked)
    a, b = torch.arange(16), torch.arange(16) + 1
    for _ in range(n):
        a, b = b, a + b
    assert torch.equal(out, torch.stack([a, b, torch.arange(16) + 2 * n]).int())


@CHECKED
def test_early_return(checked):
    x = torch.tensor([3, -4, 5, -6, 7], dtype=torch.int32)
    out = torch.zeros(5, dtype=torch.int32)
    run(kernels.early, x, out, 4, grid=(5,), checked=checked)
    assert out.tolist() == [6, -1, 10, -1, 0]


@pytest.mark.parametrize("n", [3, -3])
def test_if_with_results(n):
    x = torch.arange(16, dtype=torch.int32)
    out = torch.zeros_like(x)
    run(kernels.choose, x, out, n, N=16)
    assert torch.equal(out, x + 1 + n if n > 0 else x * 3 + n - 5)


LIMIT = 2**31 - 1


@pytest.mark.parametrize(
    ("low", "high", "step"),
    [(0, 10, 1), (3, 10, 4), (5, 5, 1), (7, 2, 1), (-5, 5, 3), (LIMIT - 10, LIMIT, 7), (-LIMIT, -LIMIT + 3, 2)],
)
def test_counters(low, high, step):
    """A counter that would pass the largest int32 ends the loop all the same."""
    out = torch.zeros(2, dtype=torch.int32)
    run(kernels.counts, out, low, high, step, checked=True, limit_s=5)
    turns = list(range(low, high, step))
    assert out.tolist() == [len(turns), turns[-1] if turns else -1]


def test_a_carried_tensor_that_is_arranged_anew():
    x, out = torch.randn(16), torch.zeros(16)
    run(kernels.turning, x, out, 3, N=16)
    for _ in range(3):
        x = x.view(2, 8).T.reshape(16)
    assert torch.equal(out, x)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_scalars_change_places(n):
    out = torch.zeros(2, dtype=torch.int32)
    run(kernels.change_places, out, n)
    assert out.tolist() == ([2, 1] if n % 2 else [1, 2])


def test_a_tensor_that_moves_by_a_tensor():
    x, out = torch.arange(16, dtype=torch.int32) % 5, torch.zeros(16, dtype=torch.int32)
    run(kernels.drift, x, out, 4, N=16)
    assert torch.equal(out, torch.arange(16, dtype=torch.int32) + 4 * x)
