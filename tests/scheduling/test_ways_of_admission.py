"""The three ways of admission: what each leaves free, and what follows from it in any history."""

import random
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from tests.scheduling.harness import Harness, make_request
from tests.scheduling.test_pressure import groups_of, play, random_window
from twophase.config import ADMISSIONS
from twophase.scheduling.planner import Planner
from twophase.scheduling.sequence import Sequence
from twophase_features.admission import Estimate
from twophase_features.windows.sliding_window import SlidingWindow


@contextmanager
def no_preemption():
    """A step that preempts fails the test. (Steps that were dropped may cost a sequence its blocks, and that is not
    for want of any.)"""

    def preempt(self, victim):
        raise AssertionError(f"sequence {victim.seq_id} was preempted for want of a block")

    with patch.object(Planner, "_preempt", preempt):
        yield


# Windows, forks, drafts, shared prefixes, failures (test_pressure.py); small windows, of which most is shared now and
# then; layers of different kinds.
HISTORIES = {
    "any": lambda seed: {},
    "windows": lambda seed: random_window(random.Random(seed), 2) | {"block_size": 2, "prefix_caching": True},
    "mixed layers": lambda seed: groups_of(seed) | {"max_num_seqs": 6, "budget": 12, "watermark": 0},
}


@pytest.mark.parametrize("num_histories", [40, pytest.param(400, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", HISTORIES)
def test_reserve_never_preempts_for_want_of_a_block(kind, num_histories):
    """Requests of one completion and of up to three. The negative control: without it the same histories preempt."""
    forks = accepted = preemptions = 0
    for seed in range(num_histories):
        options = HISTORIES[kind](seed)
        with no_preemption():
            harness = play(seed, 20, 0.1 * (seed % 2), admission="reserve", **options)
        forks += sum(index > 0 for _, index in harness.ends)
        accepted += harness.num_accepted
        preemptions += len(play(seed, 12, 0.0, admission="optimistic", **options).preempted)
    assert min(forks, preemptions, accepted) > num_histories // 3


def first_steps(harness: Harness) -> dict[str, int]:
    return {name: min(step for step, who, _ in harness.log if who == name) for _, name, _ in harness.log}


# Requests as (prompt, max_tokens, n), and the blocks in which all of them run from the first step on, in blocks of 4.
# Of max_tokens tokens all but the last are written: after a prompt of 6, 11 end with the last slot of block 4, 4 with
# the first of block 3.
LAYERS = {"window": SlidingWindow(8), "sees_all": (True, False, False)}
FITS = {
    "ends of blocks": ({}, [(6, 11, 1), (6, 7, 1)], 4 + 3),
    "begun blocks": ({}, [(6, 4, 1), (6, 4, 1)], 3 + 3),
    "one of each": ({}, [(6, 4, 1), (6, 11, 1)], 3 + 4),
    "three": ({}, [(6, 4, 1)] * 3, 3 * 3),
    "the prompts' own blocks": ({}, [(6, 3, 1)] * 3, 3 * 2),
    "a copy of the second block, and two more, for each completion": ({}, [(6, 11, 2), (6, 3, 1)], 2 + 2 * 3 + 2),
    "a window lies in three blocks": ({"window": SlidingWindow(8)}, [(2, 50, 2), (2, 7, 1)], 2 * 3 + 3),
    "13 blocks where all keys are seen": (LAYERS, [(2, 50, 1), (2, 7, 1)], 13 + 2 * 3 + 3 * 2),
    "completions in three groups": (LAYERS, [(2, 50, 3), (2, 7, 1)], 3 + 3 * (13 + 2 * 3) + 3 * 2),
}


def check_fit(case: str) -> None:
    """All are let in at once if their worst cases fit together; with a block less the last one is not."""
    options, requests, num_blocks = FITS[case]
    for num_lacking in (0, 1):
        own = {"prefix_caching": False, "admission": "reserve", "budget": 18}
        harness = Harness(num_blocks=num_blocks - num_lacking, **own | options)
        harness.add(*(make_request(name, *sizes, n=n) for name, (*sizes, n) in zip("abc", requests, strict=False)))
        with no_preemption():
            harness.run().check_outputs()
        assert sum(step == 0 for step in first_steps(harness).values()) == len(requests) - num_lacking


@pytest.mark.parametrize("case", FITS)
def test_reserve_lets_in_what_fits_beside_the_worst_case_and_not_a_block_more(case):
    check_fit(case)


def estimate():
    return Harness(admission="estimate").scheduler.planner.admission


def note(rule, num_tokens, max_tokens):
    """A completion of so many tokens ends."""
    sequence = Sequence.of_request(0, make_request("a", 1, max_tokens), max_model_len=1000)
    sequence.token_ids += [0] * num_tokens
    rule.note_end(sequence)


class TestEstimate:
    def test_the_average_by_hand(self):
        rule = estimate()
        assert rule.mean_length is None
        assert rule.expected(50) == 50
        note(rule, 10, max_tokens=100)
        assert rule.mean_length == pytest.approx(91)
        note(rule, 1, max_tokens=7)
        assert rule.mean_length == pytest.approx(0.9 * 91 + 0.1)
        assert rule.expected(50) == 50
        assert rule.expected(200) == 82  # a part of a token is one
        before = rule.mean_length
        for i in range(1, 30):
            note(rule, 0, max_tokens=100)
            assert rule.mean_length == pytest.approx(before * Estimate.DECAY**i), "old lengths are forgotten"

    def test_it_learns_from_what_ends_by_itself_and_from_nothing_else(self):
        harness = Harness(admission="estimate", num_blocks=64)
        rule = harness.scheduler.planner.admission
        harness.add(make_request("a", 5, 10, ignore_eos=True), make_request("b", 5, 10, ignore_eos=True))
        harness.step()
        harness.take(harness.scheduler.abort("a"))
        harness.take(harness.scheduler.fail(1, ValueError("a test says so")))
        assert rule.mean_length is None
        harness.add(make_request("c", 5, 10, n=2, ignore_eos=True))
        harness.step()
        harness.step()
        first, _ = harness.scheduler.sequences.values()
        harness.take(harness.scheduler.finish(first.seq_id, "stop", "###"))
        assert rule.mean_length == pytest.approx(0.9 * 10 + 0.1 * (len(first.token_ids) - first.num_prompt_tokens))
        so_far = rule.mean_length
        harness.run()
        assert rule.mean_length == pytest.approx(0.9 * so_far + 0.1 * 10)

    @pytest.mark.parametrize("admission", ADMISSIONS)
    def test_with_short_answers_it_lets_in_more_than_the_worst_case_would(self, admission):
        """60 tokens are allowed, and the model ends most answers before the tenth: four of its 17 words do."""
        harness = Harness(num_blocks=32, max_num_seqs=16, budget=64, prefix_caching=False, admission=admission)

        def num_let_in_at_once(names: str, count: int) -> int:
            now = harness.step_no
            harness.add(*(make_request(f"{names}{i}", 4, 60, eos=range(4)) for i in range(count)))
            harness.run().check_outputs()
            return sum(step == now for step, _, _ in harness.log)

        at_first = num_let_in_at_once("x", 16)
        num_let_in_at_once("y", 80)
        assert admission != "estimate" or 2 < harness.scheduler.planner.admission.mean_length < 8
        # Of 32 blocks, 16 for each in the worst case; 3 for a prompt of 4 and up to 8 tokens; 2 for the optimistic.
        least, most = {"optimistic": (16, 16), "reserve": (2, 2), "estimate": (10, 16)}[admission]
        assert at_first == (16 if admission == "optimistic" else 2), "before the first end as careful as 'reserve'"
        assert least <= num_let_in_at_once("z", 16) <= most

    def test_one_that_outlives_the_estimate_is_left_a_block(self):
        """Two tokens are expected; a had many more and goes on. So a free block is left to it, as the optimistic do."""
        harness = Harness(num_blocks=5, prefix_caching=False, admission="estimate")
        harness.scheduler.planner.admission.mean_length = 2.0
        harness.add(make_request("a", 4, 16, ignore_eos=True))
        for _ in range(6):
            harness.step()
        assert len(harness.scheduler.sequences[0].table.block_ids) == 3
        harness.add(make_request("b", 5, 1))  # needs the two that are left
        harness.step()
        assert harness.scheduler.num_waiting == 1
        harness.run().check_outputs()
        assert not harness.preempted
