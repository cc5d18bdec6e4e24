"""Steps as timelines, "a:6 b:2 | a:1 *3 !b": 6 tokens of a and 2 of b, then three steps with one of a, which preempt b
in the first. Blocks have 4 slots unless said otherwise."""

from itertools import groupby

import pytest

import tests.scheduling.harness as harness_module
from tests.scheduling.harness import EOS, Harness, make_request, next_token
from tests.scheduling.harness import make_request as R
from tests.scheduling.test_policies import Learners
from twophase.core.plan import SampledToken
from twophase.scheduling.policy import PriorityPolicy, decodes_first
from twophase_features.policies.ageing import AgeingPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.fair_shares import FairPolicy
from twophase_features.policies.request_level import StaticPolicy
from twophase_features.policies.round_robin import RotatingPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy, PrefillFirstPolicy
from twophase_features.windows.sliding_window import SlidingWindow


def row(expected: str, *arrivals, **options):
    """Requests come before the first step; behind a number, after so many further steps. A policy is made when needed."""
    return expected, arrivals, options


TIMELINES = {
    "decodes go first, and a prompt fills the rest of the budget": row(
        "a:6 b:2 | a:1 b:7 | a:1 b:3 | a:1 b:1 | a:1", R("a", 6, 5), R("b", 12, 2), budget=8),
    "a prefill begun goes on before any other is admitted": row(
        "a:4 *2 | a:2 urgent:2 | b:3", R("a", 10, 1), R("b", 3, 1), 1, R("urgent", 2, 1, priority=-1), budget=4),
    "without chunks a long head holds up the queue": row(
        "a:2 | a:1 *3 | long:8 | short:1", R("a", 2, 4), R("long", 8, 1), R("short", 1, 1), budget=8, chunked=False),
    "without chunks, a sequence that outgrew the budget comes back in two steps": row(
        "a:4 | a:1 b:4 | a:1 b:1 *7 | a:1 !b | a:1 *6 | b:6 *2 | b:1 *7",
        R("a", 4, 16), R("b", 4, 16), num_blocks=6, budget=6, chunked=False, prefix_caching=False),
    "the latest is preempted, and comes back before later ones": row(
        "a:7 b:1 | a:1 b:3 | a:1 b:1 *4 | a:1 !b | a:1 *5 | b:5 c:2 | b:1 *6",
        R("a", 7, 12), R("b", 4, 12), R("c", 2, 1), num_blocks=6, max_num_seqs=2),
    "the earliest takes the blocks of the latest": row(
        "a:4 b:3 | a:1 b:1 *4 | a:1 !b | a:1 *6 | b:8 | b:1 *6", R("a", 4, 12), R("b", 3, 12), num_blocks=4),
    "the lowest priority is preempted, even if it came first": row(
        "low:7 | low:1 high:4 | high:1 low:1 *4 | high:1 !low | high:1 *6 | low:5 | low:1 *5",
        R("low", 7, 12, priority=1), 1, R("high", 4, 12), num_blocks=6),
    "a preempted sequence finds its own blocks again": row(
        "a:3 b:5 | a:1 b:1 *3 | a:1 !b | a:1 *2 | b:3 | b:1 *2",
        R("a", 3, 7), R("b", 6, 6), num_blocks=8, block_size=2),
    "without a prefix cache a preempted sequence finds nothing": row(
        "a:3 b:5 | a:1 b:1 *3 | a:1 !b | a:1 *2 | b:8 | b:1 *3",
        R("a", 3, 7), R("b", 6, 6), num_blocks=8, block_size=2, prefix_caching=False),
    "a shared prefix is computed once, and not across salts": row(
        "a:10 | b:2 other salt:10",
        R("a", range(10), 1), 1, R("b", range(10), 1), R("other salt", range(10), 1, salt="x"), budget=16),
    "equal prompts of one step share nothing": row("a:8 b:8", R("a", range(8), 1), R("b", range(8), 1), budget=16),
    "completions fork when the prompt is done": row(
        "a:8 | a:1 b:2 | a:1 a/1:1 a/2:1", R("a", 9, 2, n=3), R("b", 2, 1), budget=8),
    "places are kept for completions not forked yet": row(
        "a:4 | a:2 b:1 | a:1 a/1:1 a/2:1 b:1 *2 | b:1 c:1 | b:1 *2",
        R("a", 6, 3, n=3), R("b", 1, 6), R("c", 1, 1), budget=4),
    "places are kept for all completions that are admitted together": row(
        "a:2 | a:1 a/1:1 a/2:1 *2 | b:2 c:2 | b:1 b/1:1 *2",
        R("a", 2, 3, n=3), R("b", 2, 3, n=2), R("c", 2, 1), budget=16),
    "a newcomer leaves each running sequence room to grow": row(
        "a:4 b:4 c:4 | a:1 b:1 c:1 *4 | a:1 b:1 !c | a:1 b:1 *2 | c:5 d:4 | c:1 d:1 *2 | d:1 *5",
        *(R(name, 4, 8) for name in "abcd"), num_blocks=7, budget=16),
    "requests of one token need no room to grow": row(
        "a:4 b:4 c:4 d:4", *(R(name, 4, 1) for name in "abcd"), num_blocks=4, budget=16),
    "a waiting head is admitted as soon as its prefix is published": row(
        "a:20 | a:1 b:1 *2 | a:1 *7",
        R("a", range(20), 10), R("b", [*range(20), 99], 2), num_blocks=8, budget=24, max_num_seqs=2),
    "continuous joins whole prompts to the decodes": row(
        "a:3 | a:1 | a:1 b:9 c:4 | a:1 b:1 c:1 | a:1",
        R("a", 3, 5), 2, R("b", 9, 2), R("c", 4, 2), policy=lambda: ContinuousPolicy(), budget=64),
    "continuous splits no prompt": row(
        "a:3 | a:1 *4 | b:9 | b:1 c:4 | c:1",
        R("a", 3, 5), 2, R("b", 9, 2), R("c", 4, 2), policy=lambda: ContinuousPolicy(), budget=9),
    "prefill first lets decodes wait": row(
        "a:3 | a:1 | b:9 | c:4 | a:1 b:1 c:1 | a:1 *2",
        R("a", 3, 5), 2, R("b", 9, 2), R("c", 4, 2), policy=lambda: PrefillFirstPolicy(), budget=10),
    "chunked keeps every step short": row(
        "a:3 | a:1 | a:1 b:3 *3 | b:1 c:3 | c:1 *2",
        R("a", 3, 5), 2, R("b", 9, 2), R("c", 4, 2), policy=lambda: ChunkedPrefillPolicy(max_tokens=4), budget=64),
    "chunked never holds back a decode": row(
        "a:2 | a:1 a/1:1 a/2:1 *3 | b:2 | b:1",
        R("a", 2, 4, n=3), R("b", 2, 2), policy=lambda: ChunkedPrefillPolicy(max_tokens=2)),
    "static admits no request until the last is done": row(
        "a:3 b:3 | b:1 *3 | c:3",
        R("a", 3, 1), R("b", 3, 4), R("c", 3, 1), policy=lambda: StaticPolicy(batch_size=2), budget=64),
    "deadlines go by the clock, and requests without one come last": row(
        "soon:3 | late:3 | same:3 | none:3",
        R("none", 3, 1), R("late", 3, 1, ttft_slo_s=9), R("soon", 3, 1, arrival_s=4, ttft_slo_s=2),
        R("same", 3, 1, arrival_s=3, ttft_slo_s=6), policy=lambda: DeadlinePolicy(), max_num_seqs=1),
    "three prompts take turns of two a step": row(
        "a:4 b:4 | c:4 a:4 | b:4 c:4 | a:4 b:4 | c:4",
        *(R(name, 12, 1) for name in "abc"), policy=lambda: RotatingPolicy(4)),
    "a newcomer goes behind those that wait for their turn": row(
        "a:4 | b:4 | a:4 | c:4 | b:4 | a:4 | b:4",
        R("a", 12, 1), R("b", 12, 1), 1, R("c", 4, 1), policy=lambda: RotatingPolicy(4), budget=4),
    "newcomers take their turns by rank": row(
        "a:4 *2 | urgent:4 | late:4 | a:4",
        R("a", 12, 1), 1, R("late", 4, 1), R("urgent", 4, 1, priority=-1), policy=lambda: RotatingPolicy(4), budget=4),
    "by turns, a prompt that does not fit is not passed over": row(
        "a:4 | a:2 | a:1 *2 | b:4 c:2 | b:4 *3 | b:2",
        R("a", 6, 3), R("b", 18, 1), R("c", 2, 1), policy=lambda: RotatingPolicy(4), num_blocks=6),
    "without chunks a turn is a prompt": row(
        "a:8 | b:7", R("a", 8, 1), R("b", 7, 1), policy=lambda: RotatingPolicy(4), chunked=False),
    "by turns, decodes wait for no prompt and steps are short": row(
        "a:2 b:2 c:2 | d:2 a:2 b:2 | c:2 d:2 a:2 | b:2 c:2 d:2 | a:2 b:2 c:2 | d:2 a:1 b:1 c:1 | a:1 b:1 c:1 d:1 *2 | d:1",
        *(R(name, 9, 3) for name in "abcd"), policy=lambda: RotatingPolicy(2, max_tokens=6), budget=32),
    "within a tenant priority decides": row(
        "urgent:4 | late:4",
        R("late", 4, 1, tenant="a"),
        R("urgent", 4, 1, tenant="a", priority=-1), policy=lambda: FairPolicy(), max_num_seqs=1),
    "a tenant's request that does not fit is not passed over": row(
        "a0:6 | a0:1 *8 | b0:8 *2 | b0:2 a1:2",
        R("a0", 6, 9, tenant="a"), 1, R("b0", 18, 1, tenant="b"),
        R("a1", 2, 1, tenant="a"), policy=lambda: FairPolicy(), num_blocks=6, prefix_caching=False),
    "kept out by the watermark": row(
        "a:8 | a:1 *3 | b:8 | b:1 *2",
        R("a", 8, 4), 1, R("b", 9, 2), num_blocks=8, watermark=0.5, prefix_caching=False),
    "a newcomer leaves a block of each group of layers to those that grow": row(
        "a:4 b:4 | a:1 b:1 *2",
        R("a", 4, 3), R("b", 4, 3), num_blocks=8, window=SlidingWindow(9), sees_all=(True, False)),
    "and waits where there is a block less": row(
        "a:4 | a:1 *2 | b:4 | b:1 *2",
        R("a", 4, 3), R("b", 4, 3), num_blocks=7, window=SlidingWindow(9), sees_all=(True, False)),
    "reserve: blocks that one gives back another may have": row(
        "a:6 b:6 | a:1 b:1 *3 | a:1 c:6 | a:1 c:1 *3 | a:1 *3",
        R("a", 6, 11), R("b", 6, 4), R("c", 6, 4), num_blocks=8, prefix_caching=False, admission="reserve", budget=18),
    "reserve: shared blocks are not reserved twice": row(
        "a:9 | a:1 b:1 *7 | b:1",
        R("a", range(50, 59), 8), 1, R("b", range(50, 59), 8), num_blocks=6, admission="reserve", budget=16),
    "reserve: a block less, and the second waits": row(
        "a:9 | a:1 *7 | b:1 *8",
        R("a", range(50, 59), 8), 1, R("b", range(50, 59), 8), num_blocks=5, admission="reserve", budget=16),
    "equal ranks go by arrival, in the queue and when a sequence must go": row(
        "a:4 b:4 | a:1 b:1 c:4 | a:1 b:1 !c | a:1 b:1 *2 | a:1 !b | a:1 *2 | b:8 | b:1 c:5 | b:1 c:1 *2 | c:1 *4",
        *(R(name, 4, 8) for name in "abc"), policy=lambda: Learners(decodes_first, lambda sequence: (0,)),
        num_blocks=5, prefix_caching=False, reserve_growth=False),
    "a victim comes back with its full blocks from host memory": row(
        "a:4 b:3 | a:1 b:1 *4 | a:1 !b | a:1 *6 | b:4 | b:1 *6",
        R("a", 4, 12), R("b", 3, 12), num_blocks=4, num_host_blocks=4),
    "alone a request may go below the watermark": row("a:8 | a:4 | a:1 *3", R("a", 12, 4), num_blocks=4, watermark=0.9),
    "the fair policy leaves no place empty": row(
        "x0:4 y:4 | x0:1 y:1 *3 | x1:4 x2:4 | x1:1 x2:1 *3",
        *(R(f"x{i}", 4, 4, tenant="busy") for i in range(3)), R("y", 4, 4, tenant="calm"),
        policy=lambda: FairPolicy(), max_num_seqs=2),
}  # fmt: skip


def timeline_of(harness: Harness) -> str:
    steps: dict[int, list[str]] = {}
    for step, name, num_tokens in harness.log:
        steps.setdefault(step, []).append(f"{name}:{num_tokens}")
    for step, name in harness.preempted:
        steps.setdefault(step, []).append(f"!{name}")
    same = [(text, len(list(group))) for text, group in groupby(" ".join(steps[step]) for step in sorted(steps))]
    return " | ".join(text if count == 1 else f"{text} *{count}" for text, count in same)


def check_timeline(name: str) -> None:
    expected, arrivals, options = TIMELINES[name]
    harness = Harness(**options | {"policy": options["policy"]()} if "policy" in options else options)
    for each in arrivals:
        if isinstance(each, int):
            for _ in range(each):
                harness.step()
        else:
            harness.add(each)
    harness.run().check_outputs()
    assert timeline_of(harness) == expected


@pytest.mark.parametrize("name", TIMELINES)
def test_timeline(name):
    check_timeline(name)


def test_completions_share_the_prompts_sample_and_copy_its_last_block():
    harness = Harness(budget=8)
    harness.add(make_request("a", 9, 2, n=3), make_request("b", 2, 1))
    plans = [harness.step() for _ in range(3)]
    assert [[chunk.num_samples for chunk in plan.chunks] for plan in plans] == [[0], [3, 1], [1, 1, 1]]
    assert len(plans[2].copies) == 2, "two copy the partial block, the last owner keeps it"
    harness.run().check_outputs()


def _run_one(prompt_len=5, harness=None, **args):
    harness = harness or Harness()
    harness.add(make_request("a", prompt_len, **args))
    harness.run()
    return harness.outputs["a", 0], harness.ends["a", 0]


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


def test_end_of_text_as_the_very_first_token():
    prompt = next([i] for i in range(1000) if next_token([i], 0) == EOS)
    tokens, end = _run_one(prompt, max_tokens=9, eos=[EOS])
    assert (tokens, end) == ([EOS], ("stop", None))


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
