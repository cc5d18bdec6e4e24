"""The rules by which drafts are kept leave the distribution what it was; biased ones are noticed."""

from types import ModuleType

import numpy as np
import pytest
import torch

from tests.cache.plain import load_plain
from tests.mutation import KillTable, Mutant
from twophase.core.plan import SampledToken
from twophase.engine.rejection import accepted_run, rejection_sample
from twophase.engine.sampler import SamplingError

REJECTION = "twophase.engine.rejection"
NUM_RUNS = 6_000
# Standard deviations: a right sampler goes beyond with one seed in a million, and the seed is fixed.
NUM_SIGMAS = 4.75

# The model's distributions after 0, 1 and 2 drafts. Zeros are what a truncation leaves out.
P = [[0.5, 0.3, 0.15, 0.05, 0.0], [0.1, 0.0, 0.6, 0.0, 0.3], [0.2, 0.2, 0.2, 0.2, 0.2]]
Q = {
    "alike": [[0.4, 0.35, 0.15, 0.1, 0.0], [0.2, 0.0, 0.5, 0.0, 0.3]],
    "far off": [[0.05, 0.05, 0.1, 0.3, 0.5], [0.3, 0.5, 0.0, 0.2, 0.0]],
    "truncated": [[0.7, 0.3, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]],
    "one guess": [[0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]],
    "the same": P[:2],
}


def chi_square_limit(num_degrees: int) -> float:
    """What a chi-square variable hardly ever exceeds (Wilson, Hilferty, PNAS 17, 1931: its cube root is nearly normal)."""
    variance = 2 / (9 * num_degrees)
    return num_degrees * (1 - variance + NUM_SIGMAS * variance**0.5) ** 3


def check_distribution(module: ModuleType) -> None:
    """Runs of two drafts over five tokens, filled up as later steps would; every triple as often as p says."""
    p = torch.tensor(P, dtype=torch.float64)
    for name, rows in Q.items():
        q = torch.tensor(rows, dtype=torch.float64)
        rng = np.random.default_rng(7)
        counts, num_accepted = np.zeros((5, 5, 5)), 0
        drafts = np.stack([rng.choice(5, NUM_RUNS, p=row) for row in rows], axis=1)
        rest = np.stack([rng.choice(5, NUM_RUNS, p=row) for row in P], axis=1)
        accept_u, token_u = torch.from_numpy(rng.random((NUM_RUNS, 2))), rng.random(NUM_RUNS)
        for i in range(NUM_RUNS):
            run = module.rejection_sample(p, q, drafts[i].tolist(), accept_u[i], float(token_u[i]))
            counts[(*run, *rest[i, len(run) :])] += 1
            num_accepted += len(run) > 1
        expected = NUM_RUNS * np.einsum("i,j,k->ijk", *np.array(P))
        assert not counts[expected == 0].any(), f"{name}: an impossible token came"
        cells = expected > 0
        statistic = (((counts - expected) ** 2)[cells] / expected[cells]).sum()
        limit = chi_square_limit(int(cells.sum()) - 1)
        assert statistic < limit, f"{name}: chi-square {statistic:.0f}, at most {limit:.0f} is likely"
        rate = np.minimum(np.array(P[0]), np.array(rows[0])).sum()  # 1 - TV(p, q)
        error = abs(num_accepted / NUM_RUNS - rate)
        assert error < 5 * np.sqrt(rate * (1 - rate) / NUM_RUNS) + 1e-12, f"{name}: accepts {error} more or less"


def test_the_distribution_is_the_models():
    check_distribution(load_plain(REJECTION))


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("every draft accepted", "if not accept_u[i] * q[i, draft] < p[i, draft]:", "if False:"),
        ("redrawn from p", "(p[i] - q[i]).clamp_min(0)", "p[i]"),
        ("redrawn from the wrong side", "(p[i] - q[i]).clamp_min(0)", "(q[i] - p[i]).clamp_min(0)"),
        ("likelier drafts refused", "if not accept_u[i] * q[i, draft] < p[i, draft]:", "if not accept_u[i] * p[i, draft] < q[i, draft]:"),
        ("accepted by p alone", "if not accept_u[i] * q[i, draft] < p[i, draft]:", "if not accept_u[i] < p[i, draft]:"),
        ("the last token from the first row", "_draw(p[len(tokens)], token_u)", "_draw(p[0], token_u)"),
        ("one random number for both", "_draw((p[i] - q[i]).clamp_min(0), token_u)", "_draw((p[i] - q[i]).clamp_min(0), accept_u[i])"),
        ("the largest of the residual", "found = int(torch.searchsorted(cdf, u * cdf[-1], right=True))", "found = int(weights.argmax())"),
    ],
)  # fmt: skip
def test_biased_variants_are_noticed(name, old, new):
    def check(module: ModuleType) -> None:
        if module.__name__ != REJECTION:  # the real one passed in the test before, without the type checks' cost
            check_distribution(module)

    KillTable.record(Mutant(name, REJECTION, old, new), check)


def test_a_draft_that_q_cannot_make_is_refused():
    p = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ValueError, match=r"token 1, which has probability 0\.0 in q"):
        rejection_sample(p, torch.tensor([[1.0, 0.0]]), [1], torch.tensor([0.5]), 0.5)


def test_a_run_ends_at_the_first_difference():
    drawn = [(SampledToken(t),) for t in (5, 8, 9, 4)]
    assert accepted_run(drawn, [5, 8, 2]) == (*drawn[0], *drawn[1], *drawn[2])
    assert accepted_run(drawn, [5, 8, 9]) == tuple(token for (token,) in drawn)
    assert accepted_run(drawn, [1, 8, 9]) == drawn[0]
    assert accepted_run(drawn[:1], []) == drawn[0]


def test_an_error_counts_only_if_nothing_comes_before_it():
    error, token = SamplingError("planted"), (SampledToken(5),)
    assert accepted_run([error, token], [5]) is error
    assert accepted_run([token, error], [5]) == token
    assert accepted_run([token, error], [6]) == token
