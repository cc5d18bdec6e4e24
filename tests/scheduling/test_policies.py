"""Each policy as a timeline: (step, request, tokens)."""

from itertools import pairwise

import pytest

from tests.scheduling.harness import Harness, make_request
from twophase.core.errors import PolicyError
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.request_level import DynamicPolicy
from twophase_features.policies.whole_prompts import PrefillFirstPolicy


def test_prefill_first_starves_decodes_as_long_as_prompts_come_unless_bounded():
    def longest_stall(policy):
        harness = Harness(policy=policy, budget=8, num_blocks=200, max_num_seqs=8)
        harness.add(make_request("a", 3, 5))
        harness.step()
        for i in range(20):
            harness.add(make_request(f"r{i}", 8, 1))
            harness.step()
        harness.run().check_outputs()
        steps = [step for step, name, _ in harness.log if name == "a"]
        return max(b - a for a, b in pairwise(steps)) - 1

    assert longest_stall(PrefillFirstPolicy()) == 20
    assert longest_stall(PrefillFirstPolicy(max_stalled_steps=3)) == 3
    assert longest_stall(ChunkedPrefillPolicy(max_tokens=4)) == 0


def test_dynamic_waits_for_company_but_not_for_ever():
    harness = Harness(policy=DynamicPolicy(batch_size=2, timeout_s=5), step_s=1)
    harness.add(make_request("a", 3, 1))
    plan = harness.step()
    assert (plan.is_empty, plan.wake_s) == (True, 5)
    harness.now_s = 2
    harness.add(make_request("b", 3, 1, arrival_s=2))
    harness.step()
    assert harness.log == [(0, "a", 3), (0, "b", 3)]
    harness.now_s = 10
    harness.add(make_request("c", 3, 1, arrival_s=10))
    assert harness.step().wake_s == 15
    harness.now_s = 15
    harness.step()
    assert harness.log[2:] == [(1, "c", 3)]


class Learners(Policy):
    """A policy given as a function of the step, and perhaps one of the sequence."""

    def __init__(self, plan_step, rank=lambda sequence: (sequence.arrival_order, sequence.index)):
        self.plan_step = plan_step
        self.rank_of = rank

    def rank(self, sequence):
        return self.rank_of(sequence)

    def plan(self, step):
        self.plan_step(step)


def calling(waiting=(), running=()):
    """A plan that makes these calls, "admit 2" or "decode", for each sequence of the two queues."""

    def plan(step):
        for calls, sequences in ((running, step.running), (waiting, step.waiting)):
            for sequence in list(sequences):
                for call in calls:
                    name, *numbers = call.split()
                    getattr(step, name)(sequence, *map(int, numbers))

    return plan


PLANNED_TWICE = calling(waiting=["admit"], running=["decode", "decode"]), "planned sequence 0 twice"


@pytest.mark.parametrize(
    ("plan_step", "said"),
    [
        PLANNED_TWICE,
        (calling(waiting=["admit", "admit"]), "admitted sequence 0, which is running already"),
        (calling(waiting=["admit 2"], running=["admit 2"]), "running already"),
        (calling(waiting=["admit 2"], running=["decode"]), "still in prefill"),
        (calling(waiting=["admit"], running=["prefill"]), "decodes already"),
        (calling(waiting=["decode"]), "not running: admit it first"),
        (lambda step: None, "^Learners planned nothing.*0 sequences are running and 1 waiting: it would hang"),
        (lambda step: step.wait_until(step.now_s), "later time"),
        (lambda step: step.wait_until(float("nan")), "later time"),
        (lambda step: step.wait_until(float("inf")), "later time"),
    ],
)
def test_a_policy_that_makes_no_sense_is_told_so_and_nothing_is_lost(plan_step, said):
    harness = Harness(policy=Learners(plan_step))
    harness.add(make_request("a", 5, 4))
    with pytest.raises(PolicyError, match=said):
        harness.run(3)
    harness.scheduler.policy = PriorityPolicy()
    harness.run().check_outputs()


class TestOffloading:
    def test_another_request_finds_what_has_left_the_pool(self):
        harness = Harness(num_blocks=4, num_host_blocks=8)
        for name, prompt in (("a", range(100, 113)), ("b", range(200, 213)), ("c", range(100, 113))):
            harness.add(make_request(name, prompt, 1))
            harness.run().check_outputs()
        assert harness.log[-1][1:] == ("c", 1)
        assert harness.num_loaded == 3

    @pytest.mark.parametrize("call", ["match", "load", "store"])
    @pytest.mark.parametrize("answer", [None, -1, 10**6, OSError("no space left on device")], ids=str)
    def test_a_tier_that_fails_or_answers_no_number_of_blocks_costs_no_request(self, call, answer, caplog):
        """It is logged, and its blocks are computed."""

        def broken(*arguments):
            if isinstance(answer, OSError):
                raise answer
            return answer

        harness = Harness(num_blocks=4, num_host_blocks=4)
        setattr(harness.cache.tier, call, broken)
        harness.add(make_request("a", 4, 12), make_request("b", 3, 12))
        harness.run().check_outputs()
        assert harness.preempted
        assert harness.num_loaded == 0
        assert (str(answer) if isinstance(answer, OSError) else "the KV tier failed in") in caplog.text


class TestAdmission:
    def test_without_a_reserve_a_crowded_pool_thrashes(self):
        def num_preemptions(**options):
            harness = Harness(num_blocks=12, max_num_seqs=6, budget=32, **options)
            harness.add(*(make_request(name, 7, 12) for name in "abcdef"))
            return len(harness.run().preempted)

        assert num_preemptions(reserve_growth=False) > num_preemptions()
        assert num_preemptions(watermark=0.5) == 0
