"""What runs when, as timelines: log == [(step, request, tokens), ...]. Blocks have 4 slots unless said otherwise."""

import pytest

import tests.scheduling.harness as harness_module
from tests.scheduling.harness import EOS, Harness, make_request, next_token
from tests.scheduling.test_policies import Learners
from twophase.core.plan import SampledToken
from twophase.scheduling.policy import PriorityPolicy
from twophase_features.policies.ageing import AgeingPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.windows.sliding_window import SlidingWindow


def test_decodes_go_first_and_a_prompt_fills_the_rest_of_the_budget():
    harness = Harness(budget=8)
    harness.add(make_request("a", 6, 5), make_request("b", 12, 2))
    harness.run().check_outputs()
    assert harness.log == [
        *[(0, "a", 6), (0, "b", 2)],
        *[(1, "a", 1), (1, "b", 7)],
        *[(2, "a", 1), (2, "b", 3)],
        *[(3, "a", 1), (3, "b", 1)],
        (4, "a", 1),
    ]


def test_a_prefill_begun_goes_on_before_anyone_else_is_let_in():
    harness = Harness(budget=4)
    harness.add(make_request("a", 10, 1), make_request("b", 3, 1))
    harness.step()
    harness.add(make_request("urgent", 2, 1, priority=-1))
    harness.run().check_outputs()
    assert harness.log == [(0, "a", 4), (1, "a", 4), (2, "a", 2), (2, "urgent", 2), (3, "b", 3)]


def test_without_chunks_a_long_head_holds_up_the_queue():
    harness = Harness(budget=8, chunked=False)
    harness.add(make_request("a", 2, 4), make_request("long", 8, 1), make_request("short", 1, 1))
    harness.run().check_outputs()
    # 'short' would fit beside 'a' in every step, but nobody overtakes.
    assert harness.log == [(0, "a", 2), (1, "a", 1), (2, "a", 1), (3, "a", 1), (4, "long", 8), (5, "short", 1)]


def test_without_chunks_what_outgrew_the_budget_still_comes_back():
    harness = Harness(num_blocks=6, budget=6, chunked=False, prefix_caching=False)
    harness.add(make_request("a", 4, 16), make_request("b", 4, 16))
    harness.run().check_outputs()
    assert harness.preempted == [(9, "b")]
    # 12 tokens to recompute, 6 at a time: there is no step that could take them whole.
    assert [entry for entry in harness.log if entry[1] == "b" and entry[0] >= 9][:2] == [(16, "b", 6), (17, "b", 6)]


def test_the_latest_is_preempted_and_comes_back_before_later_ones():
    harness = Harness(num_blocks=6, max_num_seqs=2)
    harness.add(make_request("a", 7, 12), make_request("b", 4, 12), make_request("c", 2, 1))
    harness.run().check_outputs()
    assert harness.preempted == [(6, "b")]
    assert [entry for entry in harness.log if entry[0] in (6, 12)] == [(6, "a", 1), (12, "b", 5), (12, "c", 2)]


def test_the_earliest_takes_the_blocks_of_the_latest():
    harness = Harness(num_blocks=4)
    harness.add(make_request("a", 4, 12), make_request("b", 3, 12))
    harness.run().check_outputs()
    assert {name for _, name in harness.preempted} == {"b"}
    assert [tokens for _, name, tokens in harness.log if name == "a"] == [4] + [1] * 11, "a never stops"


def test_the_lowest_priority_is_preempted_even_if_it_came_first():
    harness = Harness(num_blocks=6)
    harness.add(make_request("low", 7, 12, priority=1))
    harness.step()
    harness.add(make_request("high", 4, 12))
    harness.run().check_outputs()
    assert harness.log[:3] == [(0, "low", 7), (1, "low", 1), (1, "high", 4)]
    assert harness.log[3:5] == [(2, "high", 1), (2, "low", 1)], "in rank order from now on"
    assert {name for _, name in harness.preempted} == {"low"}


def test_a_preempted_sequence_finds_its_own_blocks_again():
    """Recomputing costs only what another sequence has overwritten since."""
    recomputed = {}
    for prefix_caching in (True, False):
        harness = Harness(num_blocks=8, block_size=2, prefix_caching=prefix_caching)
        harness.add(make_request("a", 3, 7), make_request("b", 6, 6))
        harness.run().check_outputs()
        assert harness.preempted == [(4, "b")]
        recomputed[prefix_caching] = next(entry for entry in harness.log if entry[1] == "b" and entry[0] >= 4)
    assert recomputed == {True: (7, "b", 3), False: (7, "b", 8)}


def test_a_shared_prefix_is_computed_once_and_not_across_salts():
    prompt = range(10)
    harness = Harness(budget=16)
    harness.add(make_request("a", prompt, 1))
    harness.step()
    harness.add(make_request("b", prompt, 1), make_request("other salt", prompt, 1, salt="x"))
    assert harness.scheduler.sequences[1].num_cached_tokens == 0
    harness.run().check_outputs()
    assert harness.log == [(0, "a", 10), (1, "b", 2), (1, "other salt", 10)]


def test_blocks_are_found_only_after_they_were_written():
    """Two equal prompts in one step: the second can't use what the first is only about to write."""
    harness = Harness(budget=16)
    harness.add(make_request("a", range(8), 1), make_request("b", range(8), 1))
    harness.run().check_outputs()
    assert harness.log == [(0, "a", 8), (0, "b", 8)]
    # Nor does a step that was planned but never ran publish anything.
    harness = Harness(budget=16)
    harness.add(make_request("a", range(8), 1))
    harness.schedule()
    harness.scheduler.abort("a")
    harness.add(make_request("b", range(8), 1))
    harness.run()
    assert harness.log == [(0, "b", 8)]


def test_completions_fork_when_the_prompt_is_done():
    harness = Harness(budget=8)
    harness.add(make_request("a", 9, 2, n=3), make_request("b", 2, 1))
    plan = harness.step()
    assert [chunk.num_samples for chunk in plan.chunks] == [0]
    plan = harness.step()
    assert [chunk.num_samples for chunk in plan.chunks] == [3, 1]
    plan = harness.step()
    assert len(plan.copies) == 2, "two copy the partial block, the last owner keeps it"
    harness.run().check_outputs()
    assert harness.log == [
        (0, "a", 8),
        *[(1, "a", 1), (1, "b", 2)],
        *[(2, "a", 1), (2, "a/1", 1), (2, "a/2", 1)],
    ]


def test_places_are_kept_for_completions_not_forked_yet():
    harness = Harness(max_num_seqs=4, budget=4)
    harness.add(make_request("a", 6, 3, n=3), make_request("b", 1, 6), make_request("c", 1, 1))
    harness.run().check_outputs()
    assert [entry for entry in harness.log if entry[1] in "bc" and entry[0] < 4] == [
        (1, "b", 1),
        (2, "b", 1),
        (3, "b", 1),
    ]
    assert [step for step, name, _ in harness.log if name == "c"] == [4], "in after 'a' is out"


def test_places_are_kept_for_all_who_come_in_together():
    harness = Harness(max_num_seqs=4, budget=16)
    harness.add(make_request("a", 2, 3, n=3), make_request("b", 2, 3, n=2), make_request("c", 2, 1))
    harness.run().check_outputs()
    starts = {name: step for step, name, tokens in harness.log if tokens == 2}
    assert starts == {"a": 0, "b": 3, "c": 3}, "'c' would find a place, but nobody overtakes"


def _run_one(prompt_len=5, harness=None, **args):
    harness = harness or Harness()
    harness.add(make_request("a", prompt_len, **args))
    harness.run()
    return harness.outputs["a", 0], harness.ends["a", 0]


def test_end_of_text_as_the_very_first_token():
    prompt = next([i] for i in range(1000) if next_token([i], 0) == EOS)
    tokens, end = _run_one(prompt, max_tokens=9, eos=[EOS])
    assert (tokens, end) == ([EOS], ("stop", None))


def test_every_way_to_stop():
    tokens, end = _run_one(max_tokens=30, ignore_eos=True, eos=range(17))
    assert (len(tokens), end) == (30, ("length", None))
    fifth = tokens[4]
    cut = tokens[: tokens.index(fifth) + 1]
    assert _run_one(max_tokens=30, stop_token_ids=[fifth]) == (cut, ("stop", fifth))
    assert _run_one(max_tokens=30, eos=[fifth]) == (cut, ("stop", None))
    assert _run_one(max_tokens=30, eos=[fifth], stop_token_ids=[fifth]) == (cut, ("stop", None))
    assert _run_one(max_tokens=30, eos=[fifth], stop_token_ids=[fifth], ignore_eos=True) == (cut, ("stop", fifth))
    assert _run_one(max_tokens=1) == (tokens[:1], ("length", None))
    assert _run_one(max_tokens=30, harness=Harness(max_model_len=9)) == (tokens[:4], ("length", None))
    assert _run_one(max_tokens=len(cut), stop_token_ids=[fifth]) == (cut, ("stop", fifth)), "a stop beats the length"


def test_the_engine_ends_a_sequence_at_a_stop_string():
    harness = Harness()
    harness.add(make_request("a", 5, 9), make_request("b", 5, 3))
    harness.step()
    harness.take(harness.scheduler.finish(0, "stop", "###"))
    assert harness.scheduler.finish(0, "stop", "###") == []
    harness.run().check_outputs(but=frozenset("a"))
    assert harness.ends["a", 0] == ("stop", "###")


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
def test_abort_ends_every_completion_wherever_it_stands(num_steps):
    harness = Harness(budget=4)
    harness.add(make_request("b", 3, 6), make_request("a", 7, 9, n=3))
    for _ in range(num_steps):
        harness.step()
    updates = harness.scheduler.abort("a")
    assert sorted(update.index for update in updates) == [0, 1, 2]
    assert {update.finish_reason for update in updates} == {"abort"}
    assert harness.scheduler.abort("a") == []
    harness.check_state()
    harness.run().check_outputs(but=frozenset("a"))


def test_an_old_sequence_is_let_in_only_if_running_ones_keep_room_to_grow():
    """'a' and 'b' hold 2 of 6 blocks and may each need more: 'c' leaves each of the three one, 'd' would not."""
    harness = Harness(num_blocks=7, budget=16)
    harness.add(*(make_request(name, 4, 8) for name in "abcd"))
    harness.run().check_outputs()
    assert {name for step, name, _ in harness.log if step == 0} == {"a", "b", "c"}
    first_preemption = min((step for step, _ in harness.preempted), default=99)
    assert first_preemption > 4, "nobody is thrown out within block_size steps of the last admission"


def test_one_token_requests_need_no_room_to_grow():
    harness = Harness(num_blocks=4, budget=16)
    harness.add(*(make_request(name, 4, 1) for name in "abcd"))
    harness.run()
    assert {step for step, _, _ in harness.log} == {0}


def test_a_waiting_head_gets_in_as_soon_as_its_prefix_is_published():
    harness = Harness(num_blocks=8, budget=24, max_num_seqs=2)
    harness.add(make_request("a", range(20), 10), make_request("b", [*range(20), 99], 2))
    harness.run().check_outputs()
    assert harness.log[:4] == [(0, "a", 20), (1, "a", 1), (1, "b", 1), (2, "a", 1)]


def test_ageing_bounds_how_long_a_low_priority_waits():
    """A stream of urgent requests, one a second; patience 5 s for one level."""

    def wait(policy):
        harness = Harness(max_num_seqs=1, policy=policy)
        for second in range(30):
            if second == 2:
                harness.add(make_request("low", 3, 1, priority=1, arrival_s=2.0))
            harness.add(make_request(f"high {second}", 3, 2, arrival_s=float(second)))
            harness.step()
        names = [name for _, name, tokens in harness.log if tokens == 3]
        return [name for name in names if name > "high 2" or name == "low"], names

    assert "low" not in wait(PriorityPolicy())[1]
    _, names = wait(AgeingPolicy(patience_s=5.0))
    assert names[names.index("low") - 1 : names.index("low") + 2] == ["high 6", "low", "high 7"]


def test_first_come_first_served_without_starvation():
    """With equal priorities everybody starts in order of arrival, whatever its size."""
    harness = Harness(num_blocks=12, budget=6)
    harness.add(*(make_request(f"{i:02}", 1 + i * 7 % 20, 1 + i * 5 % 9) for i in range(30)))
    harness.run().check_outputs()
    starts = list(dict.fromkeys(name for _, name, _ in harness.log))
    assert starts == sorted(starts)


def test_statistics_count_a_preempted_request_once():
    harness = Harness(num_blocks=6, max_num_seqs=2)
    harness.add(make_request("a", 7, 12), make_request("b", 4, 12), make_request("c", 2, 1))
    harness.run()
    stats = harness.cache.stats()
    assert harness.preempted
    assert (stats.num_queries, stats.num_queried_tokens) == (3, 13)


def test_update_wants_the_latest_plan_and_its_samples():
    harness = Harness()
    harness.add(make_request("a", 5, 3))
    dropped = harness.schedule()
    plan = harness.schedule()
    sampled = harness.execute(plan)
    for wrong in ({}, {0: []}, {0: [SampledToken(1), SampledToken(2)]}):
        with pytest.raises(ValueError, match="sequence 0 was to get 1 sampled tokens"):
            harness.scheduler.update(plan, wrong)
    with pytest.raises(ValueError, match="latest plan"):
        harness.scheduler.update(dropped, sampled)
    harness.take(harness.scheduler.update(plan, sampled))
    with pytest.raises(ValueError, match="latest plan"):
        harness.scheduler.update(plan, sampled)
    harness.run().check_outputs()


def test_nothing_to_do_is_an_empty_plan():
    harness = Harness()
    plan = harness.schedule()
    assert plan.is_empty
    assert harness.scheduler.update(plan, {}) == []


def test_drafts_go_no_further_than_the_sequence():
    """Prompt of 3, 5 tokens to come: after the first, 4 are left, so 3 drafts and the token behind them."""
    harness = Harness(budget=32)
    harness.add(make_request("a", 3, 5))
    harness.step()
    with_room = harness_module.with_room(harness.scheduler.schedule(), harness.scheduler, 10)
    assert [chunk.num_drafts for chunk in with_room.chunks] == [3]
    right = [50, 51, 52, 53]
    plan = harness_module.with_drafts(with_room, harness.scheduler, {0: right[:3]})
    assert (plan.num_decodes, plan.num_verifying, plan.num_tokens) == (0, 1, 4)
    (update,) = harness.scheduler.update(plan, {0: [SampledToken(token) for token in right]})
    assert ([token.token_id for token in update.tokens], update.finish_reason) == (right, "length")


@pytest.mark.parametrize("policy", [ChunkedPrefillPolicy(max_tokens=8), DeadlinePolicy(max_tokens=8)], ids=str)
def test_drafts_take_of_the_policys_tokens_what_is_left(policy):
    """With drafts too a step is never longer than the policy says."""
    harness = Harness(policy=policy, budget=64, max_drafts=9)
    harness.add(*(make_request(name, 5, 20, ignore_eos=True) for name in "abc"))
    harness.run().check_outputs()
    steps = {step for step, _, _ in harness.log}
    assert max(sum(tokens for at, _, tokens in harness.log if at == step) for step in steps) == 8
    assert harness.num_accepted > 0


@pytest.mark.parametrize("order", ["prefills first", "decodes first"])
def test_drafts_take_no_block_that_a_prefill_reserved(order):
    """b computes a long prompt through a window, block after block; a's accepted drafts leave it what it needs."""

    def plan(step):
        prefills = [sequence for sequence in step.running if not sequence.is_decoding]
        decodes = [sequence for sequence in step.running if sequence.is_decoding]
        for sequence in prefills + decodes if order == "prefills first" else decodes + prefills:
            if sequence.is_decoding:
                step.decode(sequence)
            else:
                step.prefill(sequence, 2)
        for sequence in step.waiting:
            step.admit(sequence, 2)

    options = {"window": SlidingWindow(8), "num_blocks": 5, "reserve_growth": False, "prefix_caching": False}
    harness = Harness(policy=Learners(plan), budget=12, max_drafts=3, **options)
    harness.add(make_request("a", 3, 30))
    harness.step()
    harness.add(make_request("b", 20, 3))
    harness.run().check_outputs()
    assert harness.num_accepted > 0
