"""A run's numbers against the timeline that was computed by hand."""

import dataclasses
import json
import math

import pytest

from tests.tools.load.timeline import RECORDS, STEPS, A, B, D, step
from twophase_tools.load import report, steps
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.slo import Slo


def test_steps_by_hand():
    found = steps.StepSummary.of(STEPS)
    assert (found.num_steps, found.busy_s, found.overhead_s) == (6, 60, 12)
    assert (found.num_decode_tokens, found.num_prefill_tokens) == (3, 8 + 3 + 2 + 2 + 10)
    assert (found.num_preemptions, found.num_recomputed_tokens) == (1, 10)
    # States hold from the end of a step to the end of the next: [10, 20), [20, 30), [30, 50), [50, 60), [60, 70).
    assert (found.num_blocks, found.blocks_in_use_max) == (10, 5)
    assert found.blocks_in_use_mean == pytest.approx((2 * 10 + 5 * 10 + 5 * 20 + 3 * 10) / 60)
    assert steps.StepSummary.of([]) is None


def test_swapped_blocks_are_counted():
    moved = [dataclasses.replace(STEPS[0], blocks_offloaded=3), dataclasses.replace(STEPS[1], blocks_loaded=2)]
    found = steps.StepSummary.of(moved)
    assert (found.num_blocks_offloaded, found.num_blocks_loaded) == (3, 2)
    assert "3 swapped out, 2 back in" in report.ServingReport.of(RECORDS, moved).to_text()
    assert "swapped" not in report.ServingReport.of(RECORDS, STEPS).to_text()


def test_one_step_is_its_own_mean():
    assert steps.StepSummary.of(STEPS[:1]).blocks_in_use_mean == 2


def test_recomputed_tokens_are_positions_seen_before():
    history = [
        step(0, 0, [("A", 0, 0, 6)], 0, 2, 6),
        step(1, 10, [("A", 0, 6, 1), ("B", 0, 0, 4)], 1, 3, 8),
        step(2, 20, [("A", 0, 4, 3)], 0, 2, 7),  # 4 tokens hit the cache, 4, 5 and 6 come again
        step(3, 30, [("A", 0, 7, 2), ("A", 1, 6, 1)], 0, 2, 7),
    ]
    assert steps.num_recomputed_tokens(history) == 3


def test_a_report_by_hand():
    found = report.ServingReport.of(RECORDS, STEPS, slo=Slo(ttft_s=26, tpot_s=20), window=(0, 80))
    counts = found.num_completed, found.num_failed, found.num_aborted, found.num_unfinished
    assert (found.num_requests, counts) == (4, (3, 0, 1, 0))
    assert (found.num_prompt_tokens, found.num_cached_tokens, found.num_output_tokens) == (17, 2, 7)
    assert found.num_preemptions == 1
    assert (found.window_s, found.requests_per_s, found.output_tokens_per_s) == (80, 3 / 80, 7 / 80)
    assert found.offered_requests_per_s == 3 / 15
    assert found.cache_hit_rate == 2 / 17
    assert (found.goodput.num_met, found.goodput.requests_per_s) == (2, 2 / 80)
    assert found.steps == steps.StepSummary.of(STEPS)


def test_without_a_window_it_is_from_the_first_arrival_to_the_last_event():
    assert report.ServingReport.of([B, A]).window_s == 70
    assert report.ServingReport.of([B]).window_s == 46
    unfinished = RequestRecord("u", 3, 4, (9, 11), None, 1)
    assert report.ServingReport.of([unfinished]).window_s == 8
    with pytest.raises(ValueError, match="end before it starts"):
        report.ServingReport.of([A], window=(5, 4))


def test_nothing_to_measure_is_said():
    empty = report.ServingReport.of([])
    assert (empty.requests_per_s, empty.output_tokens_per_s, empty.offered_requests_per_s) == (None, None, None)
    assert (empty.goodput, empty.steps, empty.cache_hit_rate) == (None, None, None)
    text = empty.to_text()
    assert "none" in text
    assert "nan" not in text
    assert report.ServingReport.of([D], window=(0, 80)).latencies.ttft is None
    at_once = RequestRecord("x", 0, 0, (0,), 0, 1, finish_reason="length")
    assert report.ServingReport.of([at_once]).requests_per_s is None


def test_the_text_has_the_numbers():
    found = report.ServingReport.of(RECORDS, STEPS, slo=Slo(ttft_s=26, tpot_s=20), window=(0, 80))
    text = found.to_text()
    for piece in (
        "3 of 4 completed in 80.00 s (0 failed, 1 aborted, 0 unfinished)",
        "0.03 requests/s within TTFT <= 26 s and TPOT <= 20 s: 2 of 4 (50.0 %)",
        "25 prefill and 3 decode tokens, 10 of them again after 1 preemptions",
        "11.8 % from the prefix cache",
    ):
        assert piece in text, piece
    row = next(line for line in text.splitlines() if line.startswith("TTFT"))
    assert row.split() == ["TTFT", "26.0000", "43.6000", "45.8000", "47.5600", "48.0000", "28.0000", "3"]


def test_the_dict_is_strict_json():
    found = report.ServingReport.of(RECORDS, STEPS, slo=Slo(ttft_s=26))
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["latencies"]["ttft"]["p50"] == 26
    assert math.isclose(found.to_dict()["cache_hit_rate"], 2 / 17)
