"""Validation: what can never be served is refused with its numbers, and nothing that can be is."""

import pytest

from tests.scheduling.harness import Harness, make_request
from tests.scheduling.test_policies import Learners
from twophase.cache.manager import CacheManager
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase.scheduling.limits import SchedulerConfig, num_blocks_at_most
from twophase_features.windows.sliding_window import SlidingWindow
from twophase_server.openai_chat import max_new_tokens


def check_worst_case(prompt_len, max_tokens, n, num_blocks=None, **options) -> None:
    """A pool of just the worst case serves the request, and one of a block less refuses it."""
    if num_blocks is None:
        options = {"max_model_len": 32}
        num_blocks = num_blocks_at_most(prompt_len, max_tokens, n, SchedulerConfig(4, 8, 32), CacheManager(1, 4))
    request = make_request("a", prompt_len, max_tokens, n=n)
    harness = Harness(num_blocks=num_blocks, **options)
    harness.add(request)
    harness.run().check_outputs()
    assert harness.preempted == [], "what was counted is enough"
    if num_blocks > 1:
        message = rf"may need {num_blocks} KV blocks of 4 tokens .* the pool has {num_blocks - 1}; lower max_tokens"
        with pytest.raises(InvalidRequestError, match=message):
            Harness(num_blocks=num_blocks - 1, **options).add(request)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 40])
def test_the_worst_case(prompt_len, max_tokens, n):
    check_worst_case(prompt_len, max_tokens, n)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 31])
@pytest.mark.parametrize("num_blocks", [8, 9, 13, 40])
def test_the_longest_answer_that_fits(prompt_len, n, num_blocks, chunked):
    harness = Harness(num_blocks=num_blocks, max_model_len=32, chunked=chunked, budget=32)
    most = max_new_tokens(harness.scheduler, prompt_len, n)
    harness.add(make_request("a", prompt_len, most, n=n))
    assert most <= 32 - prompt_len
    if most < 32 - prompt_len:
        with pytest.raises(InvalidRequestError, match="KV blocks"):
            harness.add(make_request("b", prompt_len, most + 1, n=n))


@pytest.mark.parametrize(
    ("request_args", "options", "message"),
    [
        ({"prompt": 0}, {}, "at least one token, got none"),
        ({"prompt": 20}, {"max_model_len": 20}, "max_model_len=20, and the prompt alone has 20 .* at most 19"),
        ({"prompt": 3, "n": 5}, {"max_num_seqs": 4}, "max_num_seqs=4, got n=5"),
        ({"prompt": 9}, {"chunked": False, "budget": 8}, "max_num_batched_tokens=8, got 9 tokens; set enable_chunked"),
    ],
)
def test_refusals_state_rule_and_numbers(request_args, options, message):
    harness = Harness(**options)
    with pytest.raises(InvalidRequestError, match=message):
        harness.add(make_request("a", **request_args))
    assert not harness.scheduler.has_unfinished
    harness.add(make_request("a", 3))
    harness.run().check_outputs()


def test_budget_must_hold_a_decode_for_every_place():
    with pytest.raises(ConfigError, match="got 3 < 4"):
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=3, max_model_len=16)


LONG = {"max_model_len": 99}
GROUPS = {"window": SlidingWindow(6), "sees_all": (True, False, False), "max_model_len": 64}
WHOLE = GROUPS | {"chunked": False, "budget": 40}  # a prompt is written at once, in all groups


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "n", "num_blocks", "options"),
    [
        (6, 5, 2, 5, LONG),  # the docstring's example
        (4, 1, 1, 1, LONG),  # the sampled token is never written
        (4, 2, 1, 2, LONG),
        (4, 2, 3, 4, LONG),  # one shared block, three of their own
        (5, 1, 3, 2, LONG),  # one token each: nothing is written after the fork
        (4, 1000, 1, 4, {"max_model_len": 17}),  # capped by the context
        (4, 1000, 1, 5, {"max_model_len": 18}),
        (1, 1, 1, 3, GROUPS),  # one of each group
        (30, 11, 1, 10 + 2 * 3, GROUPS),  # 40 slots where all keys are seen; windows of 6 lie in 3 blocks at most
        (30, 11, 2, (7 + 2 * 3) + 2 * 2 * 3, GROUPS),  # 7 full blocks of the prompt are shared where all keys are seen
        (5, 4, 1, 2 + 2 * 2, GROUPS),
        (30, 1, 1, 24, WHOLE),
    ],
)
def test_the_worst_case_by_hand(prompt_len, max_tokens, n, num_blocks, options):
    check_worst_case(prompt_len, max_tokens, n, num_blocks, **options)


def test_a_prefill_leaves_the_others_what_they_reserved():
    """Three prompts of 5 blocks, each has reserved 5 where all keys are seen and 3 elsewhere: there are no more."""

    def a_token_each_then_all(step):
        for sequence in step.running:
            step.prefill(sequence)
        for sequence in step.waiting:
            step.admit(sequence, 1)

    options = {"num_blocks": 24, "reserve_growth": False, "max_model_len": 64, "budget": 60}
    harness = Harness(
        window=SlidingWindow(6), sees_all=(True, False), policy=Learners(a_token_each_then_all), **options
    )
    harness.add(*(make_request(name, 20, 1) for name in "abc"))
    harness.step()
    assert harness.cache.num_free_blocks == 0
    plan = harness.schedule()
    assert [(chunk.start, len(chunk.token_ids)) for chunk in plan.chunks] == [(1, 11)] * 3
    assert harness.cache.stats().num_free == 3 * 2, "what all three still need, where all keys are seen"
    harness.run().check_outputs()
