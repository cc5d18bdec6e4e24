"""What lab 5's first two sections stand on: the service on paper, fair chance, workloads told apart."""

from collections.abc import Sequence

import numpy as np
import pytest

from twophase.core.plan import ScheduledChunk
from twophase.engine.sampler import SampleRow
from twophase_features.speculation.drafter import DraftRequest
from twophase_labs.advanced.draft_chance import Chance, counts_at, run_passes
from twophase_labs.advanced.draft_engine import OwnDrafter, never_right
from twophase_labs.advanced.prefix_service import BLOCK, PaperService


def test_the_service_on_paper_computes_what_it_has_not_seen() -> None:
    ask = PaperService(base_s=1.0, token_s=0.001)
    prompt = list(range(3 * BLOCK))
    assert ask(prompt) == pytest.approx(1 + 0.001 * 3 * BLOCK)
    assert ask([*prompt, 7]) == pytest.approx(1.001), "all but the last token is known"
    assert ask(prompt) == pytest.approx(1 + 0.001 * BLOCK), "known to the last: the last block is computed again"
    assert ask(prompt[BLOCK:]) == pytest.approx(1 + 0.001 * 2 * BLOCK), "the same blocks behind another past are new"
    assert ask.num_requests == 4


def test_chance_draws_in_proportion() -> None:
    chance = Chance(3)
    drawn = np.bincount([chance.draw([1, 0, 3, 0]) for _ in range(20_000)], minlength=4) / 20_000
    assert drawn[[1, 3]].sum() == 0
    assert drawn[2] == pytest.approx(0.75, abs=0.02)
    for weights in ([0.0, 0.0], [0.5, -0.1], [float("nan"), 1]):
        with pytest.raises(ValueError, match="weights"):
            chance.draw(weights)


def test_a_rule_that_is_right_passes_where_the_learners_is_tried() -> None:
    """Another implementation of the algorithm (arXiv:2211.17192, section 2.3), judged by what it yields."""
    p, q = np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]), np.array([[0.2, 0.3, 0.5]])

    def verify(draft: list[int], p: np.ndarray, q: np.ndarray, chance: Chance) -> list[int]:
        for i, token in enumerate(draft):
            if chance.uniform() * q[i, token] >= p[i, token]:
                return [*draft[:i], chance.draw(np.maximum(p[i] - q[i], 0))]
        return [*draft, chance.draw(p[len(draft)])]

    outputs = run_passes(verify, p, q, 6_000)
    assert counts_at(outputs, 0, 3) / 6_000 == pytest.approx(p[0], abs=0.03)
    after = counts_at(outputs, 1, 3)
    assert after.sum() / 6_000 == pytest.approx(0.7, abs=0.03), "the overlap of the two rows"
    assert after / after.sum() == pytest.approx(p[1], abs=0.03)


def test_a_drafter_of_a_function() -> None:
    def never_asked(drafts: Sequence[int]) -> SampleRow:
        raise AssertionError("a lookup draws nothing")

    chunk = ScheduledChunk(1, (3,), 2, [0], 1, num_drafts=3)
    request = DraftRequest(chunk, (1, 2, 3), frozenset(), row_after=never_asked, num_allowed=len, vocab_size=100)
    assert OwnDrafter(never_right).propose([request, request]) == [[10, 11, 12]] * 2
