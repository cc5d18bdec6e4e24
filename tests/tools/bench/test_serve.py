"""`bench serve`: requests come by the clock, on a clock that only the test and the engine move."""

import json

import pytest

from tests.engine.engines import check_idle, make_engine
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase.core.request import CompletionOutput, RequestMetrics, RequestOutput
from twophase_tools.bench import serve as serve_module
from twophase_tools.bench.serve import ServedEngine
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import TimedRequest


class FakeTime:
    """A clock that moves when somebody sleeps or works."""

    def __init__(self, now_s=1000.0):
        self.now_s = now_s
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds

    @property
    def clock(self):
        return {"now_s": lambda: self.now_s, "sleep": self.sleep}


class FakeEngine:
    """One request at a time, first come first served: each step takes `step_s` and gives its head one token."""

    def __init__(self, time, step_s=1.0, idle_s=0.0):
        self.time, self.step_s, self.idle_s = time, step_s, idle_s
        self.queue = []
        self.log = []
        self.wishes = []
        self.trace = ()

    def add_request(self, request_id, prompt, params, *, arrival_s, ttft_slo_s, stream):
        if len(prompt["prompt_token_ids"]) > 100:
            raise InvalidRequestError("too long")
        assert params.ignore_eos
        assert params.is_greedy
        assert not stream
        self.log.append((self.time.now_s, "add", request_id))
        self.wishes.append(ttft_slo_s)
        self.queue.append(
            {"id": request_id, "left": params.max_tokens, "arrival_s": arrival_s, "times": [], "first": None}
        )

    def has_unfinished_requests(self):
        return bool(self.queue)

    def step(self):
        head = self.queue[0]
        if head["first"] is None:
            head["first"] = self.time.now_s
        self.time.now_s += self.step_s
        self.log.append((self.time.now_s, "token", head["id"]))
        head["times"].append(self.time.now_s)
        head["left"] -= 1
        return [self.output(self.queue.pop(0), "length")] if head["left"] == 0 else []

    def abort(self, request_id):
        (state,) = [state for state in self.queue if state["id"] == request_id]
        self.queue.remove(state)
        return self.output(state, "abort")

    def output(self, state, reason):
        times = tuple(state["times"])
        metrics = RequestMetrics(
            state["arrival_s"], state["first"], times[0] if times else None, self.time.now_s, times, 1, 0, 0
        )
        completion = CompletionOutput(0, "", (0,) * len(times), finish_reason=reason)
        return RequestOutput(state["id"], None, (0,), (completion,), True, metrics)


def request(request_id, arrival_s, num_output_tokens=2, num_prompt_tokens=1):
    return TimedRequest(request_id, arrival_s, num_prompt_tokens, num_output_tokens)


def relative(run):
    start_s = run.window[0]
    return {
        record.request_id: (
            record.arrival_s - start_s,
            record.first_scheduled_s and record.first_scheduled_s - start_s,
            tuple(time_s - start_s for time_s in record.token_times_s),
            record.finish_reason,
        )
        for record in run.records
    }


def play(*requests, step_s=1.0, **options):
    time = FakeTime()
    engine = FakeEngine(time, step_s)
    return serve_module.serve(engine, requests, 50, **time.clock, **options), engine, time


def test_arrivals_do_not_wait_for_completions():
    """a holds the engine from 0 to 3; b is due at 0.5 and c at 2.5, and both latencies count from then."""
    run, engine, _ = play(request("a", 0, 3), request("b", 0.5, 1), request("c", 2.5, 2))
    assert relative(run) == {
        "a": (0, 0, (1, 2, 3), "length"),
        "b": (0.5, 3, (4,), "length"),
        "c": (2.5, 4, (5, 6), "length"),
    }
    handed_over = [(time_s - 1000, name) for time_s, what, name in engine.log if what == "add"]
    assert handed_over == [(0, "a"), (1, "b"), (3, "c")]  # between steps, before anybody is done
    assert [record.request_id for record in run.records] == ["a", "b", "c"]
    assert (run.window, run.was_cut, run.refusals) == ((1000, 1006), False, ())


def test_in_a_closed_loop_a_request_comes_when_another_ends():
    """Two clients: b is there while a runs; c comes when a has ended, and its latency counts from then."""
    requests = (request("a", 7, 2), request("b", 8, 1), request("c", 9, 1))
    run, engine, _ = play(*requests, concurrency=2)
    assert relative(run) == {
        "a": (0, 0, (1, 2), "length"),
        "b": (0, 2, (3,), "length"),
        "c": (2, 3, (4,), "length"),
    }
    assert [(time_s - 1000, name) for time_s, what, name in engine.log if what == "add"] == [
        (0, "a"),
        (0, "b"),
        (2, "c"),
    ]


def test_an_idle_engine_is_left_alone_until_the_next_arrival():
    run, _, time = play(request("a", 0.3, 1), request("b", 3.3, 1))
    assert [round(record.first_scheduled_s - 1000, 5) for record in run.records] == [0.3, 3.3]
    assert sum(time.slept) == pytest.approx(0.3 + 2.0, abs=1e-4)
    assert max(time.slept) <= serve_module.MAX_SLEEP_S
    assert len(time.slept) < 12  # no polling


def test_the_duration_limit_aborts_what_is_unfinished_and_forgets_what_has_not_come():
    run, engine, _ = play(
        request("a", 0, 2),
        request("b", 1, 5),
        request("c", 1, 5),
        request("d", 9, 1),
        duration_limit_s=4,
    )
    assert run.was_cut
    assert relative(run) == {"a": (0, 0, (1, 2), "length"), "b": (1, 2, (3, 4), "abort"), "c": (1, None, (), "abort")}
    assert run.window == (1000, 1004)
    assert not engine.has_unfinished_requests()


def test_a_refused_request_is_a_failed_one_and_the_others_go_on():
    run, _, _ = play(request("a", 0, 1), request("long", 0, 1, num_prompt_tokens=200), request("b", 0, 1))
    assert run.refusals == (("long", "too long"),)
    assert [(record.request_id, record.finish_reason) for record in run.records] == [
        ("a", "length"),
        ("long", "error"),
        ("b", "length"),
    ]


def test_an_engine_that_waits_for_company_is_not_spun():
    for arrivals_s, slept in (((0,), [0.4]), ((0, 0.25), [0.25])):  # a request that comes ends the wait
        time = FakeTime()
        engine = FakeEngine(time, step_s=0.0, idle_s=0.4)
        requests = [request(str(arrival_s), arrival_s, 2) for arrival_s in arrivals_s]
        serve_module.serve(engine, requests, 50, **time.clock)
        assert time.slept[:1] == pytest.approx(slept, abs=1e-6)


def test_the_policy_is_told_what_was_promised():
    for slo, expected in ((None, [None]), (Slo(ttft_s=0.5), [0.5]), (Slo(tpot_s=0.5), [None])):
        _, engine, _ = play(request("a", 0), slo=slo)
        assert engine.wishes == expected


def test_the_real_engine_on_a_clock_of_its_own(tiny_model):
    """Each look at the clock takes 10 ms, so the run is the same everywhere; tokens equal those of no load at all."""
    time = FakeTime(0.0)

    def tick():
        time.now_s += 0.01
        return time.now_s

    engine = make_engine(tiny_model, clock=tick, num_blocks=12, max_trace_steps=None)
    assert isinstance(engine, ServedEngine)
    requests = [request(str(i), 0.05 * i, 3 + i % 4, 5 + 3 * i) for i in range(8)]
    run = serve_module.serve(engine, requests, 100, now_s=tick, sleep=time.sleep)
    check_idle(engine)
    assert [record.finish_reason for record in run.records] == ["length"] * 8
    assert [record.num_output_tokens for record in run.records] == [3 + i % 4 for i in range(8)]
    assert [record.num_prompt_tokens for record in run.records] == [5 + 3 * i for i in range(8)]
    assert sum(len(step.finished) for step in run.steps) == 8
    assert all(step.slots_in_use <= 4 * step.blocks_in_use for step in run.steps)
    ended = [max(record.finished_s for record in run.records), run.window[1]]
    assert ended == sorted(ended)


ARGS = ("bench", "serve", "--device", "cpu", "--workload", "quick", "--requests", 3, "--rate", 200, "--model")


def test_the_command(twophase, tiny_folder):
    exit_code, out, err = twophase(*ARGS, tiny_folder, "--slo-ttft", 60)
    assert exit_code == 0, err
    assert "3 of 3 completed" in out
    assert "within TTFT <= 60 s: 3 of 3 (100.0 %)" in out
    exit_code, out, err = twophase(*ARGS, tiny_folder, "--json", "--concurrency", 2)
    found = json.loads(out)
    assert (found["workload"], found["summary"]["num_completed"], found["refusals"]) == ("quick", 3, [])
    assert found["machine"]["num_cores"] >= 1
    assert found["engine"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"duration_limit_s": 0}, "duration limit"),
        ({"duration_limit_s": float("nan")}, "duration limit"),
        ({"concurrency": 0}, "at least 1 client"),
        ({}, "'a'"),
    ],
)
def test_what_makes_no_run(options, message):
    with pytest.raises(ConfigError, match=message):
        play(request("a", 0), *[request("a", 0)] * (not options), **options)
