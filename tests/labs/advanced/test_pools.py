"""Lab 5's prefill and decode pools: timelines by hand, and nobody is lost."""

import math
from dataclasses import replace

import pytest

from twophase_labs.advanced import plan_pools
from twophase_labs.advanced.plan_pools import DOCUMENTS, DecodeEngine, in_pools, stage_seconds
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.model_shapes import MODELS


@pytest.fixture
def steps_of_a_second(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every decode step takes a second; returns what each was asked to decode: sequences, and keys."""
    seen: list[tuple[int, int]] = []

    def step_s(num_seqs: int, context: int) -> float:
        seen.append((num_seqs, context))
        return 1.0

    monkeypatch.setattr(plan_pools, "decode_step_s", step_s)
    return seen


def test_a_decode_engine_is_a_timeline(steps_of_a_second: list[tuple[int, int]]) -> None:
    engine = DecodeEngine()
    engine.arriving.extend([(0.5, 0, 3, 10), (1.0, 1, 1, 5)])  # ready, request, tokens left, context
    engine.run_until(math.inf)
    # 0.5: request 0 alone; 1 comes during its step; 1.5: both; 2.5: request 0 again, with 12 tokens behind it.
    assert steps_of_a_second == [(1, 11), (2, 12 + 6), (1, 13)]
    assert engine.ended_s == {0: 3.5, 1: 2.5}


@pytest.mark.usefixtures("steps_of_a_second")
def test_steps_that_start_later_are_not_done() -> None:
    engine = DecodeEngine()
    engine.arriving.append((0.0, 0, 3, 10))
    assert engine.num_requests(1.5) == 1
    assert engine.now_s == 2.0  # the step that runs at 1.5 ends then
    assert engine.num_requests(2.5) == 0
    assert engine.ended_s == {0: 3.0}


@pytest.mark.parametrize("num_prefill", [1, 4, 7])
def test_everybody_is_served_and_no_time_is_negative(num_prefill: int) -> None:
    traffic = replace(DOCUMENTS, num_requests=60)
    outcome = in_pools(traffic, num_prefill, 8 - num_prefill)
    assert len(outcome.times) == 60
    shortest_s = min(plan_pools.prefill_s(len(request.prompt_token_ids)) for request in traffic.requests)
    assert all(ttft_s >= shortest_s - 1e-9 and tpot_s >= 0 for ttft_s, tpot_s in outcome.times)


def test_one_request_alone_takes_what_its_parts_take() -> None:
    traffic = replace(DOCUMENTS, num_requests=1)
    request = traffic.requests[0]
    num_tokens, num_more = len(request.prompt_token_ids), request.sampling_params.max_tokens - 1
    ((ttft_s, tpot_s),) = in_pools(traffic, 1, 1).times
    decode_s = sum(plan_pools.decode_step_s(1, num_tokens + i + 1) for i in range(num_more))
    assert ttft_s == pytest.approx(plan_pools.prefill_s(num_tokens))
    assert tpot_s == pytest.approx((plan_pools.transfer_s(num_tokens) + decode_s) / num_more)


def test_stages_of_one_chunk_are_the_model_without_its_output_projection() -> None:
    """Bound by arithmetic, the layers' parts of a prompt add up to the whole."""
    shape = replace(MODELS["llama-3-70b"], vocab_size=0)
    whole = RooflineCostModel(HARDWARE["h100"], shape)
    pairs = 8192 * 8193 // 2
    load = plan_pools.StepLoad(8192, 0, 1, 0, pairs, 8192)
    parts = stage_seconds(8192, 1, 4)
    assert sum(part[0] for part in parts) == pytest.approx(float(whole.run_s(load)))
