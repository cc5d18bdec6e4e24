"""The three ways of admission: what each leaves free, and what follows from it in any history."""

import random
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tests.scheduling.harness import EOS, Harness, make_request, outputs_alone
from tests.scheduling.test_pressure import play, random_groups, random_window
from twophase.config import ADMISSIONS, EngineConfig
from twophase.core.errors import ConfigError
from twophase.scheduling.planner import Planner
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


def play_reserved(seeds, disturbed=0.1, **options):
    """Windows, forks, drafts, shared prefixes, failures: see test_pressure.py."""
    with no_preemption():
        return [play(seed, 20, disturbed, admission="reserve", **options) for seed in seeds]


def play_reserved_windows(seeds):
    """Small windows in crowded pools: most of what a sequence holds is shared now and then."""
    with no_preemption():
        for seed in seeds:
            rng = random.Random(seed)
            options = random_window(rng, 2) | {"block_size": 2, "prefix_caching": True}
            play(seed, 12, 0.0, admission="reserve", **options)


def test_windows_share_and_reserve():
    play_reserved_windows(range(30))


def test_with_a_window_no_more_is_reserved_than_it_holds():
    """A window of 8 in blocks of 4 lies in 3 of them at most. Two completions of a, however long, hold 6, b holds 2."""
    for num_blocks, together in ((9, True), (8, False)):
        harness = Harness(
            num_blocks=num_blocks, window=SlidingWindow(8), admission="reserve", prefix_caching=False, budget=16
        )
        assert harness.window.max_blocks(4) == 3
        harness.add(make_request("a", 2, 50, n=2), make_request("b", 2, 7))
        harness.step()
        assert any(name == "b" for _, name, _ in harness.log) == together
        with no_preemption():
            harness.run().check_outputs()


def random_groups_of(seed: int) -> dict:
    """Layers that see all keys and layers that see a window, in pools for one to a few of the longest sequences."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4])
    return random_groups(rng, block_size) | {"block_size": block_size}


@pytest.mark.parametrize("num_histories", [40, pytest.param(400, marks=pytest.mark.full)])
def test_reserve_never_preempts_on_a_model_of_mixed_layers(num_histories):
    """Prompts of one completion and of up to three. The negative control: without it they do."""
    forks = preemptions = 0
    for seed in range(num_histories):
        options = random_groups_of(seed) | {"max_num_seqs": 6, "budget": 12, "watermark": 0}
        with no_preemption():
            harness = play(seed, 20, 0.1 * (seed % 2), admission="reserve", **options)
        forks += sum(index > 0 for _, index in harness.ends)
        preemptions += len(play(seed, 12, 0.0, admission="optimistic", **options).preempted)
    assert min(forks, preemptions) > num_histories


@pytest.mark.parametrize("n", [1, 3])
def test_with_groups_of_layers_each_kind_is_reserved_what_it_holds(n):
    """Of 51 slots a completion of a holds 13 blocks where all keys are seen, and 3 for a window of 8, in two groups; if
    it is to part, beside those of its prompt. b holds 2 in each group."""
    most = 13 + 2 * 3 if n == 1 else 3 + n * (13 + 2 * 3)
    for num_blocks, together in ((most + 6, True), (most + 5, False)):
        harness = Harness(
            num_blocks=num_blocks,
            window=SlidingWindow(8),
            sees_all=(True, False, False),
            admission="reserve",
            prefix_caching=False,
            budget=16,
        )
        harness.add(make_request("a", 2, 50, n=n), make_request("b", 2, 7))
        harness.step()
        assert any(name == "b" for _, name, _ in harness.log) == together
        with no_preemption():
            harness.run().check_outputs()


@pytest.mark.parametrize("disturbed", [0.0, 0.15])
@pytest.mark.parametrize("num_histories", [40, pytest.param(400, marks=pytest.mark.full)])
def test_reserve_never_preempts_for_want_of_a_block(num_histories, disturbed):
    histories = play_reserved(range(num_histories), disturbed)
    assert sum(h.window is not None for h in histories) > num_histories // 5
    assert sum(index > 0 for h in histories for _, index in h.ends) > num_histories
    assert sum(h.num_accepted for h in histories) > num_histories // 3


def test_the_same_histories_preempt_without_it():
    """The negative control: the pools above are small enough for it."""
    preempted = [len(play(seed, 20, 0.0, admission="optimistic").preempted) for seed in range(20)]
    assert sum(preempted) > 20


@pytest.mark.parametrize("admission", ["reserve", "estimate"])
def test_tokens_are_those_of_each_request_alone(admission):
    for seed in range(100, 120):
        play(seed, 12, disturbed=0.1, admission=admission)


def first_steps(harness: Harness) -> dict[str, int]:
    return {name: min(step for step, who, _ in harness.log if who == name) for _, name, _ in harness.log}


# Prompts of 6 in blocks of 4 take 2 blocks. Of max_tokens tokens all but the last are written: 11 end with the last slot
# of block 4, 4 with the first of block 3.
WORST_CASES = [((11, 7), 4 + 3), ((4, 4), 3 + 3), ((4, 11), 3 + 4), ((4, 4, 4), 3 + 3 + 3), ((3, 3, 3), 2 + 2 + 2)]


def check_worst_case(max_tokens, num_blocks):
    """All are let in at once if their worst cases fit together; with a block less the last one is not."""
    for num_lacking in (0, 1):
        options = {"prefix_caching": False, "admission": "reserve", "budget": 18}
        harness = Harness(num_blocks=num_blocks - num_lacking, **options)
        harness.add(*(make_request(name, 6, most) for name, most in zip("abc", max_tokens, strict=False)))
        with no_preemption():
            harness.run().check_outputs()
        at_once = [step for step in first_steps(harness).values() if step == 0]
        assert len(at_once) == len(max_tokens) - num_lacking


@pytest.mark.parametrize(("max_tokens", "num_blocks"), WORST_CASES)
def test_reserve_lets_in_what_fits_beside_the_worst_case_and_not_a_block_more(max_tokens, num_blocks):
    check_worst_case(max_tokens, num_blocks)


def test_what_one_gives_back_another_may_have():
    """Worst cases of 4, 3 and 3 blocks in a pool of 8: c comes in when b has ended, beside a."""
    harness = Harness(num_blocks=8, prefix_caching=False, admission="reserve", budget=18)
    harness.add(*(make_request(name, 6, most, ignore_eos=True) for name, most in (("a", 11), ("b", 4), ("c", 4))))
    harness.run().check_outputs()
    assert first_steps(harness) == {"a": 0, "b": 0, "c": 4}


def test_reserve_counts_each_completion():
    """Each of a's two may take 3: a copy of the second block, and 2 more. So does it need 2 + 6, beside b's 2."""
    for num_blocks, b_starts in ((10, 0), (9, 1)):
        harness = Harness(num_blocks=num_blocks, prefix_caching=False, admission="reserve", budget=16)
        harness.add(make_request("a", 6, 11, n=2), make_request("b", 6, 3))
        with no_preemption():
            harness.run().check_outputs()
        # (Once they have parted, one of them kept the block they shared: one is left over.)
        assert first_steps(harness)["b"] == b_starts, num_blocks


def test_a_refusal_ends_with_the_run_that_was_its_reason():
    """The worst case of a is 5 blocks of 6; it ends early, with the end of its text, and b comes in with the next step."""
    harness = Harness(num_blocks=6, prefix_caching=False, admission="reserve")
    seen = next(i for i in range(1000) if 2 < len(alone(make_request("a", [i, 1, 2], 18, eos=[EOS]))) < 9)
    harness.add(make_request("a", [seen, 1, 2], 18, eos=[EOS]), make_request("b", 5, 2))
    while ("a", 0) not in harness.ends:
        harness.step()
    assert harness.scheduler.num_waiting == 1
    harness.step()
    assert harness.scheduler.num_waiting == 0
    assert harness.log[-1][1] == "b"
    harness.run().check_outputs()


def alone(request):
    ((tokens, _),) = outputs_alone(request, 64)
    return tokens


def test_what_is_shared_is_not_reserved_twice():
    """b finds a's two full blocks: beside a's worst case it needs two blocks, not four."""
    text = list(range(50, 59))
    for num_blocks, together in ((6, True), (5, False)):
        harness = Harness(num_blocks=num_blocks, admission="reserve", budget=16)
        harness.add(make_request("a", text, 8))
        harness.step()
        harness.add(make_request("b", text, 8))
        harness.step()
        assert any(name == "b" for _, name, _ in harness.log) == together
        with no_preemption():
            harness.run().check_outputs()


def estimate():
    return Harness(admission="estimate").scheduler.planner.admission


def note(rule, num_tokens, max_tokens):
    """A completion of an empty prompt ends."""
    rule.note_end(SimpleNamespace(num_prompt_tokens=0, token_ids=range(num_tokens), max_num_tokens=max_tokens))


class TestEstimate:
    @pytest.mark.unchecked_types
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
        for _ in range(300):
            note(rule, 10, max_tokens=100)
        assert rule.expected(100) == 11 if rule.mean_length > 10 else 10

    @pytest.mark.unchecked_types
    def test_old_lengths_are_forgotten_at_the_rate_of_the_decay(self):
        rule = estimate()
        note(rule, 100, max_tokens=100)
        for i in range(1, 30):
            note(rule, 0, max_tokens=100)
            assert rule.mean_length == pytest.approx(100 * Estimate.DECAY**i)

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

    def test_before_the_first_end_it_is_as_careful_as_reserve(self):
        for num_blocks, b_starts in ((7, 0), (6, 11)):
            harness = Harness(num_blocks=num_blocks, prefix_caching=False, admission="estimate", budget=16)
            harness.add(make_request("a", 6, 11), make_request("b", 6, 7))
            harness.run().check_outputs()
            assert first_steps(harness)["b"] == b_starts

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
        assert at_first == (16 if admission == "optimistic" else 2)
        assert least <= num_let_in_at_once("z", 16) <= most

    def test_one_that_outlives_the_estimate_is_left_a_block(self):
        """Two tokens are expected; a had many more and goes on. So a free block is left to it, as the optimistic do."""
        harness = Harness(num_blocks=5, prefix_caching=False, admission="estimate")
        harness.scheduler.planner.admission.mean_length = 2.0
        harness.add(make_request("a", 4, 16, ignore_eos=True))
        for _ in range(6):
            harness.step()
        held = len(harness.scheduler.sequences[0].table.block_ids)
        assert held == 3
        harness.add(make_request("b", 5, 1))  # needs the two that are left
        harness.step()
        assert harness.scheduler.num_waiting == 1
        harness.run().check_outputs()
        assert not harness.preempted


@pytest.mark.unchecked_types
@pytest.mark.parametrize("name", ["", "Reserve", "pessimistic", None, 3])
def test_an_unknown_name_is_refused_with_the_three(name):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(admission=name)
    assert "admission" in str(caught.value)
    assert "optimistic, reserve, estimate" in str(caught.value)
    assert repr(name) in str(caught.value)
