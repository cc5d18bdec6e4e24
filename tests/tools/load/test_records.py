"""What a record says about a request, and what it refuses to say."""

import math

import pytest

from tests.tools.load.timeline import A, B, C, D
from twophase.core.request import CompletionOutput, RequestMetrics, RequestOutput
from twophase_tools.load import records
from twophase_tools.load.slo import Slo


def make(arrival_s=0, scheduled_s=1, times_s=(2, 3, 5), finished_s=5, **changes):
    reason = None if finished_s is None else "length"
    options = {"num_prompt_tokens": 4, "finish_reason": reason} | changes
    return records.RequestRecord("r", arrival_s, scheduled_s, tuple(times_s), finished_s, **options)


def test_the_worked_example():
    record = make()
    assert (record.queue_s, record.ttft_s, record.itls_s, record.tpot_s, record.latency_s) == (1, 2, (1, 2), 1.5, 5)
    assert record.num_output_tokens == 3
    assert record.is_completed


def test_what_did_not_happen_is_none_and_never_zero():
    one_token = make(times_s=(2,), finished_s=2)
    assert (one_token.ttft_s, one_token.itls_s, one_token.tpot_s) == (2, (), None)
    waiting = make(scheduled_s=None, times_s=(), finished_s=None)
    assert waiting.itls_s == ()
    assert {waiting.queue_s, waiting.ttft_s, waiting.tpot_s, waiting.latency_s} == {None}
    assert not waiting.is_completed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheduled_s": -1}, "got -1 s after 0 s"),
        ({"times_s": (0.5, 3), "finished_s": 3}, "got 0.5 s after 1 s"),
        ({"times_s": (2, 4, 3)}, "got 3 s after 4 s"),
        ({"finished_s": 4}, "got 4 s after 5 s"),
        ({"times_s": (2, math.nan, 5)}, "finite"),
        ({"times_s": (2, math.inf), "finished_s": math.inf}, "finite"),
        ({"arrival_s": math.nan}, "finite"),
        ({"scheduled_s": None}, "never scheduled"),
        ({"num_prompt_tokens": -1}, "num_prompt_tokens must be >= 0"),
        ({"num_preemptions": -2}, "num_preemptions must be >= 0, got -2"),
        ({"num_cached_tokens": 5}, "num_cached_tokens=5 of a prompt of num_prompt_tokens=4"),
        ({"finished_s": None, "finish_reason": "stop"}, "come together"),
        ({"finish_reason": None}, "come together"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        make(**changes)
    assert "'r'" in str(caught.value)


def output(reasons, tokens=((1, 2), (3,))):
    completions = tuple(
        CompletionOutput(i, "", ids, finish_reason=reason)
        for i, (reason, ids) in enumerate(zip(reasons, tokens, strict=True))
    )
    finished = None not in reasons
    metrics = RequestMetrics(1.0, 2.0, 3.0, 4.0 if finished else None, (3.0, 4.0), 7, 2, 1)
    return RequestOutput("q", None, (0,) * 7, completions, finished, metrics)


def test_an_engines_output_becomes_a_record():
    record = records.RequestRecord.from_output(output(("length", "stop")))
    assert record == records.RequestRecord("q", 1.0, 2.0, (3.0, 4.0), 4.0, 7, 2, 1, "length", 1)
    assert record.num_output_tokens == 3


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [(("stop", "error"), "error"), (("abort", "stop"), "abort"), (("stop", None), None), (("stop", "length"), "stop")],
)
def test_one_bad_completion_makes_the_request_bad(reasons, expected):
    assert records.RequestRecord.from_output(output(reasons)).finish_reason == expected


def test_keeping_a_promise():
    assert A.meets(None) is None
    assert A.meets(Slo(ttft_s=10, tpot_s=20))  # exactly
    assert not A.meets(Slo(ttft_s=9.99))
    assert not A.meets(Slo(tpot_s=19.99))
    assert C.meets(Slo(ttft_s=48, tpot_s=0.001))  # one token has no TPOT to break
    assert not D.meets(Slo(ttft_s=1000))  # aborted
    assert not make(finished_s=None).meets(Slo(ttft_s=1000))  # not done yet
    assert B.meets(Slo(ttft_s=26))


@pytest.mark.parametrize("values", [(None, None), (0, None), (None, -1.0), (math.nan, None), (None, math.inf)])
def test_slos_that_promise_nothing_are_refused(values):
    with pytest.raises(ValueError, match=r"SLO|number of seconds"):
        Slo(*values)
