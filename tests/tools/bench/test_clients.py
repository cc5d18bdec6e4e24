"""Clients of an engine that runs by itself, on a clock that only sleeping moves."""

import asyncio
import sys

import pytest

from tests.mutation import KillTable, Mutant
from tests.tools.bench.virtual_time import in_virtual_time
from twophase.core.errors import ConfigError
from twophase_tools.bench import clients as clients_module
from twophase_tools.bench.clients import Progress, RefusedError
from twophase_tools.load.workloads import TimedRequest


def request(request_id, arrival_s=0.0, num_output_tokens=2):
    return TimedRequest(request_id, arrival_s, 3, num_output_tokens)


class FakeServer:
    """A token a second for everybody. `refusals`: by request id, what is raised, each time it is asked."""

    def __init__(self, tokens_at_once=1, **refusals):
        self.tokens_at_once, self.refusals = tokens_at_once, refusals
        self.asked = []

    async def ask(self, request, token_ids):
        assert len(token_ids) == request.num_prompt_tokens
        self.asked.append(request.request_id)
        if self.refusals.get(request.request_id):
            raise self.refusals[request.request_id].pop(0)
        num_tokens = 0
        while num_tokens < request.num_output_tokens:
            await asyncio.sleep(self.tokens_at_once)
            num_tokens += self.tokens_at_once
            if num_tokens == 2 and request.request_id == "breaks":
                raise RefusedError(None, "it broke")
            yield Progress(num_tokens, "length" if num_tokens >= request.num_output_tokens else None, 1)


def play(*requests, server=None, **options):
    server = server or FakeServer()
    run = in_virtual_time(lambda loop: clients_module.play(server.ask, requests, 50, now_s=loop.time, **options))
    assert run.window[0] == 1000
    records = {
        record.request_id: (
            record.arrival_s - 1000,
            record.first_scheduled_s and record.first_scheduled_s - 1000,
            tuple(time_s - 1000 for time_s in record.token_times_s),
            record.finished_s - 1000,
            record.finish_reason,
        )
        for record in run.records
    }
    return run, records


def test_in_the_open_loop_requests_come_by_the_clock():
    run, records = play(request("a", 0.0, 3), request("b", 0.5, 1), request("c", 7.0, 2))
    assert records == {
        "a": (0, 0, (1, 2, 3), 3, "length"),
        "b": (0.5, 0.5, (1.5,), 1.5, "length"),
        "c": (7, 7, (8, 9), 9, "length"),
    }
    assert list(records) == ["a", "b", "c"]
    assert (run.window[1], run.was_cut, run.refusals, run.statuses) == (1009, False, (), ())
    assert [record.num_cached_tokens for record in run.records] == [1, 1, 1]


def test_in_a_closed_loop_a_client_sends_when_its_last_request_has_ended():
    _, records = play(*(request(name, 5.0, n) for name, n in zip("abcd", (3, 1, 1, 2), strict=True)), concurrency=2)
    assert {name: (times[0], times[3]) for name, times in records.items()} == {
        "a": (0, 3),
        "b": (0, 1),
        "c": (1, 2),
        "d": (2, 4),
    }


def test_the_duration_limit_aborts_what_is_unfinished_and_forgets_what_has_not_come():
    run, records = play(request("a", 0.0, 1), request("b", 1.0, 5), request("c", 9.0), duration_limit_s=2.5)
    assert run.was_cut
    assert records == {"a": (0, 0, (1,), 1, "length"), "b": (1, 1, (2,), 2.5, "abort")}
    assert run.window == (1000, 1002.5)


def test_a_request_that_is_cut_before_its_first_token():
    _, records = play(request("a", 0.0, 1), duration_limit_s=0.5)
    assert records == {"a": (0, None, (), 0.5, "abort")}


def test_several_tokens_may_come_at_once():
    _, records = play(request("a", 0.0, 4), server=FakeServer(tokens_at_once=2))
    assert records["a"][2] == (2, 2, 4, 4)


def test_a_refusal_is_counted_by_its_status_and_stops_nobody():
    server = FakeServer(a=[RefusedError(429, "busy")], b=[RefusedError(400, "what?")], c=[RefusedError(None, "gone")])
    run, records = play(*map(request, "abcd"), server=server)
    assert run.statuses == (("400", 1), ("429", 1), ("no answer", 1))
    assert run.refusals == (("a", "429: busy"), ("b", "400: what?"), ("c", "no answer: gone"))
    assert [records[name][4] for name in "abcd"] == ["error", "error", "error", "length"]
    assert server.asked == ["a", "b", "c", "d"]


def test_a_retry_comes_when_the_server_says_and_its_waiting_counts():
    server = FakeServer(a=[RefusedError(429, "busy", 4.0), RefusedError(503, "busy")], b=[RefusedError(400, "no")] * 2)
    run, records = play(request("a"), request("b"), server=server, retries=3)
    assert records["a"] == (0, 0, (6, 7), 7, "length")  # 4 s, then the second that is the default
    assert server.asked.count("a") == 3
    assert server.asked.count("b") == 1  # asking again would not help
    assert run.statuses == (("400", 1), ("429", 1), ("503", 1))
    assert [name for name, _ in run.refusals] == ["b"]


def test_retries_have_an_end():
    server = FakeServer(a=[RefusedError(429, "busy", 1.0)] * 5)
    run, records = play(request("a"), server=server, retries=2)
    assert server.asked == ["a"] * 3
    assert records["a"][3:] == (2, "error")
    assert run.statuses == (("429", 3),)
    assert len(run.refusals) == 1


def test_what_has_begun_is_not_sent_again():
    server = FakeServer()
    run, records = play(request("breaks", 0.0, 5), server=server, retries=2)
    assert records["breaks"] == (0, 0, (1,), 2, "error")
    assert server.asked == ["breaks"]
    assert run.refusals == (("breaks", "no answer: it broke"),)


def test_progress_is_said_now_and_then():
    said = []
    play(request("a", 0.0, 12), request("b", 11.0, 3), say=said.append)
    assert said == ["5 s: 1 of 2 requests came, 0 ended", "10 s: 1 of 2 requests came, 0 ended"]


def test_a_fault_of_the_client_itself_is_raised():
    async def ask(request, token_ids):
        raise KeyError("mine")
        yield

    with pytest.raises(ExceptionGroup) as raised:
        in_virtual_time(lambda loop: clients_module.play(ask, [request("a")], 50, now_s=loop.time))
    assert raised.group_contains(KeyError, match="mine")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"duration_limit_s": 0}, "duration limit"), ({"concurrency": 0}, "at least 1 client")],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        play(request("a"), **options)
    with pytest.raises(ConfigError, match="one id"):
        play(request("a"), request("a"))


def killed(name, old, new, *tests):
    return pytest.param(Mutant(name, "twophase_tools.bench.clients", old, new), tests, id=name)


MUTANTS = [
    killed("the clock is not waited for", "await asyncio.sleep(max(0.0, due_s - self._now_s()))", "pass", test_in_the_open_loop_requests_come_by_the_clock),
    killed("one after the other", "clients.create_task(self._serve(request, token_ids, due_s))", "await self._serve(request, token_ids, due_s)", test_in_the_open_loop_requests_come_by_the_clock),
    killed("one client is enough", "for _ in range(num_clients):", "for _ in range(1):", test_in_a_closed_loop_a_client_sends_when_its_last_request_has_ended),
    killed("latency from the retry", "arrival_s=due_s,", "arrival_s=due_s if not self._statuses else sent_s + 1,", test_a_retry_comes_when_the_server_says_and_its_waiting_counts),
    killed("a chunk is a token", "* (progress.num_tokens - len(times_s))", "", test_several_tokens_may_come_at_once),
    killed("one retry less", "range(self._retries, -1, -1)", "range(self._retries, 0, -1)", test_retries_have_an_end),
    killed("everything is retried", "error.status not in RETRIED or times_s", "times_s", test_a_retry_comes_when_the_server_says_and_its_waiting_counts),
    killed("begun ones are retried", "error.status not in RETRIED or times_s or", "", test_what_has_begun_is_not_sent_again),
    killed("the server's wish is ignored", "if error.retry_after_s is None", "if True", test_a_retry_comes_when_the_server_says_and_its_waiting_counts),
    killed("refusals are not counted", "str(error.status)] += 1", "str(error.status)] = 1", test_retries_have_an_end),
    killed("a refusal is an abort", 'last = last._replace(finish_reason="error")', "pass", test_a_refusal_is_counted_by_its_status_and_stops_nobody),
    killed("the limit is no cut", "was_cut=bool(unfinished)", "was_cut=False", test_the_duration_limit_aborts_what_is_unfinished_and_forgets_what_has_not_come),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("mutant", "tests"), MUTANTS)
def test_mutant_is_killed(mutant, tests):
    def check(module):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules[__name__], "clients_module", module)
            patch.setattr(sys.modules[__name__], "RefusedError", module.RefusedError)
            for test in tests:
                test()

    KillTable.record(mutant, check)
