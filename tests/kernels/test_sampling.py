"""draw_tokens against sorting, token for token: masses are whole numbers, so nothing may differ. And weights."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests.kernels.cases import HERE
from tests.kernels.planting import noticing
from twophase_kernels import sampling

pytest.importorskip("triton", reason="not run here: no triton")

TOP_K, TOP_P, MIN_P = (0, 1, 7, 10**6), (1.0, 0.9, 1e-9), (0.0, 0.05, 1.0)


def check_draws(function, vocab_size: int, num_draws: int = 40, scale: float = 2.0) -> None:
    """A row for each combination of filters, drawn from so often; with ties, and tokens that weigh nothing."""
    filters = torch.tensor(list(itertools.product(TOP_K, TOP_P, MIN_P)), dtype=torch.float64, device=HERE)
    rng = torch.Generator().manual_seed(vocab_size)
    scores = (scale * torch.randn(len(filters), vocab_size, generator=rng)).round(decimals=1)
    scores[:, ::7] = -math.inf
    scores[:, 0] = 0.0
    weights = (scores - scores.amax(-1, keepdim=True)).exp().to(HERE)
    row_of_draw = torch.arange(len(filters)).repeat_interleave(num_draws)
    u = torch.rand(len(row_of_draw), generator=rng, dtype=torch.float64)
    u[::num_draws], u[1::num_draws] = 0.0, 1 - 2.0**-53
    given = (weights, *(each.contiguous() for each in filters.T), row_of_draw.to(HERE), u.to(HERE))
    got, want = function(*given), sampling.draw_tokens_reference(*given)
    wrong = (got != want).nonzero().flatten().tolist()
    assert not wrong, f"{len(wrong)} of {len(got)} differ; the first: {filters[row_of_draw[wrong[0]]].tolist()}"


def check_weights(function, vocab_size: int) -> None:
    """Rows out of order, one of them twice and with another temperature; a banned token, and one beyond fp32."""
    scores = torch.randn(4, vocab_size + 3, generator=torch.Generator().manual_seed(vocab_size))[:, :vocab_size]
    scores[:, 0], scores[1, 1:2] = torch.tensor([5.0, 6.0, 7.0, 8.0]), -math.inf
    scores, rows = scores.to(HERE), torch.tensor([3, 1, 1], device=HERE)
    temperature = torch.tensor([1.0, 0.5, torch.finfo(torch.float32).tiny], device=HERE)
    given = scores, rows, scores.amax(-1), temperature
    with np.errstate(over="ignore"):  # Triton's interpreter divides by NumPy
        weights = function(*given)
    torch.testing.assert_close(weights, sampling.weigh_reference(*given), rtol=3e-6, atol=0.0)


@pytest.mark.parametrize("vocab_size", [1, 2, 300, 4096, 4097])
def test_weights(vocab_size):
    check_weights(sampling.weigh, vocab_size)


@pytest.mark.parametrize("vocab_size", [1, 2, 300, 4096, 4097, 9000])
def test_equals_sorting(vocab_size):
    check_draws(sampling.draw_tokens, vocab_size)


def test_flat_rows():
    """Whose mass no few tokens hold."""
    check_draws(sampling.draw_tokens, 5000, scale=0.05)


def test_a_row_of_nan_gives_some_token():
    ones = torch.ones(1, dtype=torch.float64, device=HERE)
    weights, zero = torch.full((1, 50), math.nan, device=HERE), torch.zeros(1, dtype=torch.int64, device=HERE)
    for top_k, top_p in ((0, 1.0), (3, 0.9)):
        (token,) = sampling.draw_tokens(weights, top_k * ones, top_p * ones, 0 * ones, zero, ones / 2).tolist()
        assert 0 <= token < 50


@pytest.mark.parametrize(("name", "change"), [("weights", torch.Tensor.double), ("u", torch.Tensor.float)])
def test_refuses(name, change):
    row = torch.ones(2, dtype=torch.float64, device=HERE)
    given = {"weights": torch.ones(2, 9, device=HERE), "top_k": row, "top_p": row, "min_p": row, "u": row}
    given["row_of_draw"] = torch.zeros(2, dtype=torch.int64, device=HERE)
    with pytest.raises(ValueError, match=f"{name} must be contiguous"):
        sampling.draw_tokens(**given | {name: change(given[name])})


def check_weigh(module) -> None:
    check_weights(module.weigh, 4097)


def check(module) -> None:
    check_draws(module.draw_tokens, 4097)
    check_draws(module.draw_tokens, 300)


MUTANTS = {
    ("sampling",): [
        ("rows without a gap", "row * scores_stride", "row * vocab_size", check_weigh),
        ("scores far below", "tl.maximum(relative, MIN_SCORE)", "relative", check_weigh),
        ("top-p of the whole row", "mass = _total(row_ptr, vocab_size, lowest, False, BLOCK)\n        lowest", "mass = _total(row_ptr, vocab_size, lowest * 0, False, BLOCK)\n        lowest", check),
        ("ties dropped", "bitcast=True) >= lowest\n", "bitcast=True) > lowest\n", check),
        ("the next token", "tl.cumsum(masses, axis=0) <= target", "tl.cumsum(masses, axis=0) < target", check),
        ("the first block alone", "        before += tl.sum(masses, axis=0)\n", "", check),
    ],
}  # fmt: skip

test_mutants_are_killed = noticing(MUTANTS)
