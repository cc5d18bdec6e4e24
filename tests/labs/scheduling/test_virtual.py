"""Lab 4's scheduler on a virtual clock: timelines."""

import pytest

from twophase.scheduling.policy import Policy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.request_level import DynamicPolicy, StaticPolicy
from twophase_features.policies.whole_prompts import PrefillFirstPolicy
from twophase_labs.scheduling.virtual import StepCost, TooManyStepsError, VirtualRun, play
from twophase_tools.load.workloads import TimedRequest

TEXTBOOK = StepCost(prompt_token_s=0.001, decode_s=0.010)


def ttfts_ms(run: VirtualRun) -> list[int]:
    return [round(1000 * (record.ttft_s or 0)) for record in run.records]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PrefillFirstPolicy(), [300, 270]),
        (StaticPolicy(1), [300, 300]),  # A's three further tokens come first, 10 ms each
        (ChunkedPrefillPolicy(50), [300, 280]),  # A decodes beside B's prefill
    ],
)
def test_the_textbook_timeline(policy: Policy, expected: list[int]) -> None:
    requests = [TimedRequest("A", 0.0, 300, 4), TimedRequest("B", 0.05, 20, 4)]
    assert ttfts_ms(play(policy, requests, TEXTBOOK)) == expected


def test_steps_are_a_timeline() -> None:
    run = play(ChunkedPrefillPolicy(8), [TimedRequest("A", 0, 10, 3), TimedRequest("B", 0, 4, 1)], StepCost(step_s=1))
    assert [step.chunks for step in run.steps] == [
        (("A", 0, 0, 8),),
        (("A", 0, 8, 2), ("B", 0, 0, 4)),
        (("A", 0, 10, 1),),
        (("A", 0, 11, 1),),
    ]
    assert [record.token_times_s for record in run.records] == [(2.0, 3.0, 4.0), (2.0,)]


def test_a_policy_that_waits_is_woken() -> None:
    run = play(DynamicPolicy(4, 5), [TimedRequest("A", 2, 1, 1), TimedRequest("B", 20, 1, 1)], StepCost(step_s=1))
    assert [record.first_scheduled_s for record in run.records] == [7, 25]


def test_preemptions_are_counted() -> None:
    requests = [TimedRequest(name, 0, 6, 8) for name in "AB"]
    run = play(None, requests, StepCost(step_s=1), num_blocks=6, block_size=4, max_num_seqs=4)
    assert [record.num_preemptions for record in run.records] == [0, 1]
    assert [len(record.token_times_s) for record in run.records] == [8, 8]


def test_a_run_without_end_is_stopped() -> None:
    with pytest.raises(TooManyStepsError, match="1 requests are unfinished after 3 steps"):
        play(None, [TimedRequest("A", 0, 1, 10)], StepCost(step_s=1), max_steps=3)
