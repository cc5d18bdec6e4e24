"""`bench serve --url`: a client of a server whose every byte the test says, and load on a clock that only sleeping moves."""

import asyncio
import json

import pytest

from tests.tools.bench import fake_server
from tests.tools.bench.fake_server import completion, events, refusal, response
from tests.tools.bench.virtual_time import in_virtual_time
from twophase.core.errors import ConfigError
from twophase_tools.bench import http_client
from twophase_tools.bench.http_client import HttpClient, Progress, RefusedError, ServerError
from twophase_tools.load.workloads import TimedRequest

REQUEST = TimedRequest("a", 0.0, 3, 4)


def ask(server, api_key=None):
    """What the client makes of one answer: its progress, or the exception at its end."""

    async def main():
        progress = []
        async with HttpClient(server.url, api_key, timeout_s=60) as client:
            try:
                async for each in client.ask(REQUEST, (7, 8, 9)):
                    progress.append(each)
            except RefusedError as error:
                progress.append(error)
        return progress

    with server:
        return asyncio.run(main())


def answered(data):
    return fake_server.FakeServer(lambda body, number: data)


WHOLE = completion(3).replace(b"Connection: close", b"Connection: close\r\nContent-Length: 100000")
BROKEN_OFF = WHOLE[: len(WHOLE) // 2]


def test_what_is_sent():
    server = fake_server.FakeServer()
    ask(server, api_key="secret")
    (body,), (headers,) = server.bodies, server.headers
    assert headers["authorization"] == "Bearer secret"
    assert body["prompt"] == [7, 8, 9]
    assert {name: body[name] for name in ("model", "max_tokens", "temperature", "ignore_eos", "stream")} == {
        "model": "fake", "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True,
    }  # fmt: skip


def test_usage_tells_how_many_tokens_there_are():
    assert ask(answered(completion(2, cached=1))) == [
        Progress(0),
        Progress(1, None, 1),
        Progress(2, "length", 1),
        Progress(2, "length", 1),
    ]


def test_without_usage_a_chunk_with_text_is_a_token():
    chunks = [
        {"choices": [{"text": "x"}]},
        {"choices": [{"text": ""}]},
        {"choices": [{"text": "z", "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"completion_tokens": 5}},
    ]
    found = ask(answered(events(*chunks, "[DONE]")))
    assert [each.num_tokens for each in found] == [0, 1, 1, 2, 5]
    assert found[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("data", "status", "why"),
    [
        (refusal(429, "too many wait", Retry_After="7"), 429, "too many wait"),
        (response(502, "<html>"), 502, "'<html>'"),
        (events("{oops"), 200, "not JSON"),
        (events({"error": {"message": "the engine died"}}), 200, "the engine died"),
        (events({"choices": [{"text": "x"}]}, "[DONE]"), 200, "after 1 tokens without a finish reason"),
        (b"", None, "disconnected"),
        (b"nonsense\r\n\r\n", None, "RemoteProtocolError"),
        (BROKEN_OFF, 200, ""),
    ],
)
def test_what_is_no_answer_is_a_refusal(data, status, why):
    *before, refused = ask(answered(data))
    assert isinstance(refused, RefusedError)
    assert refused.status == status
    assert why in str(refused)
    if data is BROKEN_OFF:
        assert [each.num_tokens for each in before[:2]] == [0, 1], "what had come stays"


def model_of(url):
    async def main():
        async with HttpClient(url) as client:
            return await client.model()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (refusal(401, "which key?"), "401: .*which key?"),
        (response(200, "[]"), "no list of models"),
        (b"", "cannot be reached"),
    ],
)
def test_a_server_that_is_none(models, message):
    with fake_server.FakeServer(models=models) as server, pytest.raises(ServerError, match=message):
        model_of(server.url)


@pytest.mark.parametrize("url", ["", "ftp://x", "127.0.0.1:8000", "http://", "http://a:b"])
def test_what_is_no_url(url):
    with pytest.raises(ConfigError, match="--url must be a URL such as"):
        HttpClient(url)


# -- load


def request(request_id, arrival_s=0.0, num_output_tokens=2):
    return TimedRequest(request_id, arrival_s, 3, num_output_tokens)


class FakeServer:
    """A token a second for everybody. `refusals`: by request id, what is raised when it is asked."""

    def __init__(self, tokens_at_once=1, **refusals):
        self.tokens_at_once, self.refusals = tokens_at_once, refusals

    async def ask(self, request, token_ids):
        assert len(token_ids) == request.num_prompt_tokens
        if request.request_id in self.refusals:
            raise self.refusals[request.request_id]
        num_tokens = 0
        while num_tokens < request.num_output_tokens:
            await asyncio.sleep(self.tokens_at_once)
            num_tokens += self.tokens_at_once
            yield http_client.Progress(num_tokens, "length" if num_tokens >= request.num_output_tokens else None, 1)


def play(*requests, server=None, **options):
    server = server or FakeServer()
    run = in_virtual_time(lambda loop: http_client.play(server.ask, requests, 50, now_s=loop.time, **options))
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
    assert (run.window[1], run.was_cut, run.refusals) == (1009, False, ())
    assert [record.num_cached_tokens for record in run.records] == [1, 1, 1]


def test_in_a_closed_loop_a_client_sends_when_its_last_request_has_ended():
    _, records = play(*(request(name, 5.0, n) for name, n in zip("abcd", (3, 1, 1, 2), strict=True)), concurrency=2)
    assert {name: (times[0], times[3]) for name, times in records.items()} == {
        "a": (0, 3), "b": (0, 1), "c": (1, 2), "d": (2, 4),
    }  # fmt: skip


def test_the_duration_limit_aborts_what_is_unfinished_and_forgets_what_has_not_come():
    run, records = play(request("a", 0.0, 1), request("b", 1.0, 5), request("c", 9.0), duration_limit_s=2.5)
    assert run.was_cut
    assert records == {"a": (0, 0, (1,), 1, "length"), "b": (1, 1, (2,), 2.5, "abort")}
    assert run.window == (1000, 1002.5)
    _, records = play(request("a", 0.0, 1), duration_limit_s=0.5)
    assert records == {"a": (0, None, (), 0.5, "abort")}


def test_several_tokens_may_come_at_once():
    _, records = play(request("a", 0.0, 4), server=FakeServer(tokens_at_once=2))
    assert records["a"][2] == (2, 2, 4, 4)


def test_a_refusal_stops_nobody():
    server = FakeServer(a=http_client.RefusedError(429, "busy"), c=http_client.RefusedError(None, "gone"))
    run, records = play(*map(request, "abcd"), server=server)
    assert run.refusals == (("a", "429: busy"), ("c", "no answer: gone"))
    assert [records[name][4] for name in "abcd"] == ["error", "length", "error", "length"]


def test_a_fault_of_the_client_itself_is_raised():
    async def ask(request, token_ids):
        raise KeyError("mine")
        yield

    with pytest.raises(ExceptionGroup) as raised:
        in_virtual_time(lambda loop: http_client.play(ask, [request("a")], 50, now_s=loop.time))
    assert raised.group_contains(KeyError, match="mine")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"duration_limit_s": 0}, "duration limit"), ({"concurrency": 0}, "at least 1 client")],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        play(request("a"), **options)
    with pytest.raises(ConfigError, match="the id 'a'"):
        play(request("a"), request("a"))


# -- the command

QUICK = ("bench", "serve", "--workload", "quick", "--requests", 4, "--rate", 500)


def test_the_command(twophase, tiny_folder):
    def answer(body, number):
        return completion(body["max_tokens"]) if number != 1 else refusal(429, "busy")

    with fake_server.FakeServer(answer) as server:
        exit_code, out, err = twophase(*QUICK, "--url", server.url, "--model", tiny_folder, "--slo-ttft", 600)
    assert exit_code == 0, err
    assert "3 of 4 completed" in out
    assert "(1 failed, 0 aborted, 0 unfinished)" in out
    assert "within TTFT <= 600 s: 3 of 4" in out
    assert "Measured at the client" in out
    assert f"url {server.url}, model fake" in out


def test_the_command_sends_the_prompts_of_the_run_in_process(twophase, tiny_folder):
    from twophase_tools.load.workloads import Load, named_workload, token_ids_of

    options = ("--model", tiny_folder, "--seed", 3, "--concurrency", 1, "--json", "--api-key", "k")
    with fake_server.FakeServer() as server:
        exit_code, out, err = twophase(*QUICK, "--url", server.url, *options)
    assert exit_code == 0, err
    assert json.loads(out)["summary"]["num_completed"] == 4
    assert {headers["authorization"] for headers in server.headers} == {"Bearer k"}
    vocab_size = json.loads((tiny_folder / "config.json").read_text())["vocab_size"]
    asked = [list(token_ids_of(request, vocab_size, 3)) for request in named_workload("quick", Load(4, 500, None, 3))]
    assert sorted(body["prompt"] for body in server.bodies) == sorted(asked)


def test_nobody_there(twophase, tiny_folder):
    with fake_server.FakeServer() as server:
        pass
    exit_code, out, err = twophase(*QUICK, "--url", server.url, "--model", tiny_folder)
    assert (exit_code, out) == (1, "")
    assert "cannot be reached" in err
