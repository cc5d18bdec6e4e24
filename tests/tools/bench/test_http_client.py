"""`bench serve --url`: a client of a server whose every byte the test says, and load on it."""

import asyncio
import json
import threading
import time

import pytest

from tests.tools.bench import fake_server
from tests.tools.bench.fake_server import completion, events, refusal, response
from twophase.core.errors import ConfigError
from twophase_tools.bench import http_client
from twophase_tools.bench.http_client import HttpClient, Progress, RefusedError, ServerError
from twophase_tools.bench.serve import serve
from twophase_tools.load.workloads import TimedRequest


def ask(server, api_key=None):
    """What the client makes of one answer: its progress, or the exception at its end."""

    async def main():
        progress = []
        async with HttpClient(server.url, api_key, timeout_s=60) as client:
            try:
                async for each in client.ask((7, 8, 9), 4):
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


# -- in the place of an engine


def play(answer, *requests, **options):
    """The run, and the finish reason and number of tokens of each request."""
    with fake_server.FakeServer(answer) as server, http_client.HttpEngine(http_client.HttpClient(server.url)) as engine:
        run = serve(engine, requests, 50, sleep=engine.wait, **options)
        assert not engine.has_unfinished_requests()
    return run, {each.request_id: (each.finish_reason, each.num_output_tokens) for each in run.records}


def request(request_id, arrival_s=0.0, num_output_tokens=2):
    return TimedRequest(request_id, arrival_s, 3, num_output_tokens)


def whole(body, number):
    return completion(body["max_tokens"], cached=1)


def test_requests_come_by_the_clock_and_their_times_are_noted():
    run, found = play(whole, request("a", 0.0, 3), request("b", 0.3))
    assert found == {"a": ("length", 3), "b": ("length", 2)}
    a, b = run.records
    assert run.window[0] + 0.3 == b.arrival_s <= b.first_scheduled_s < b.token_times_s[0] <= b.finished_s
    assert (a.num_prompt_tokens, a.num_cached_tokens) == (3, 1)


def test_in_a_closed_loop_a_client_sends_when_its_last_request_has_ended():
    """At once: the server needs far less time for a request than the player sleeps when nothing happens."""
    under_way, most, lock = set(), [], threading.Lock()

    def answer(body, number):
        with lock:
            under_way.add(number)
            most.append(len(under_way))
        time.sleep(0.02)
        with lock:
            under_way.remove(number)
        return whole(body, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twophase_tools.bench.serve.MAX_SLEEP_S", 8)
        run, found = play(answer, *map(request, "abcdef"), concurrency=2)
    assert max(most) == 2
    assert [*found.values()] == [("length", 2)] * 6
    assert run.window[1] - run.window[0] < 8


def test_the_duration_limit_aborts_what_is_unfinished():
    end = threading.Event()

    def answer(body, number):
        assert end.wait(30)
        return whole(body, number)

    run, found = play(answer, request("a"), request("b", 9.0), duration_limit_s=0.5)
    end.set()
    assert run.was_cut
    assert found == {"a": ("abort", 0)}


def test_several_tokens_may_come_at_once():
    chunks = [{"choices": [{"text": "xx"}], "usage": {"completion_tokens": n}} for n in (3, 5)]
    end = {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 5}}
    run, found = play(lambda body, number: events(*chunks, end, "[DONE]"), request("a", 0.0, 5))
    assert found == {"a": ("length", 5)}
    assert len(run.records[0].token_times_s) == 5


def test_a_refusal_stops_nobody():
    refused = {1: refusal(429, "busy"), 3: b""}
    run, found = play(lambda body, i: refused.get(i, whole(body, i)), *map(request, "abcd"), concurrency=1)
    assert [why.partition(":")[0] for _, why in run.refusals] == ["429", "no answer"]
    assert [reason for reason, _ in found.values()] == ["length", "error", "length", "error"]


def test_a_fault_of_the_client_itself_is_raised(monkeypatch):
    async def ask(self, token_ids, num_tokens):
        raise KeyError("mine")
        yield

    monkeypatch.setattr(HttpClient, "ask", ask)
    with pytest.raises(KeyError, match="mine"):
        play(whole, request("a"))


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
