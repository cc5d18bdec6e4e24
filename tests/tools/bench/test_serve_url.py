"""`bench serve --url` against a server whose every byte the test says."""

import asyncio
import json

import pytest

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from tests.tools.bench.fake_server import FakeServer, completion, events, refusal, response
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
from twophase.core.errors import ConfigError
from twophase_tools.bench.clients import Progress, RefusedError
from twophase_tools.bench.http_client import HttpClient, ServerError
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
    return FakeServer(lambda body, number: data)


def test_what_is_sent():
    server = FakeServer()
    ask(server, api_key="secret")
    (body,), (headers,) = server.bodies, server.headers
    assert headers["authorization"] == "Bearer secret"
    assert body["prompt"] == [7, 8, 9]
    assert {name: body[name] for name in ("model", "max_tokens", "temperature", "ignore_eos", "stream")} == {
        "model": "fake",
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    server = FakeServer()
    ask(server)
    assert "authorization" not in server.headers[0]


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
        {"choices": [{"delta": {"content": "y"}}]},
        {"choices": [{"text": "z", "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"completion_tokens": 5}},
    ]
    found = ask(answered(events(*chunks, "[DONE]")))
    assert [each.num_tokens for each in found] == [0, 1, 1, 2, 3, 5]
    assert found[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("data", "status", "why", "retry_after_s"),
    [
        (refusal(429, "too many wait", Retry_After="7"), 429, "too many wait", 7.0),
        (refusal(503, "draining", Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), 503, "draining", None),
        (response(502, "<html>"), 502, "'<html>'", None),
        (events("{oops"), 200, "not JSON", None),
        (events({"error": {"message": "the engine died"}}), 200, "the engine died", None),
        (events({"choices": [{"text": "x"}]}), 200, "after 1 tokens without a finish reason", None),
        (events({"choices": [{"text": "x"}]}, "[DONE]"), 200, "without a finish reason", None),
        (b"", None, "disconnected", None),
        (b"nonsense\r\n\r\n", None, "RemoteProtocolError", None),
    ],
)
def test_what_is_no_answer_is_a_refusal(data, status, why, retry_after_s):
    found = ask(answered(data))
    assert isinstance(found[-1], RefusedError)
    assert (found[-1].status, found[-1].retry_after_s) == (status, retry_after_s)
    assert why in str(found[-1])


def test_a_stream_that_breaks_off():
    whole = completion(3).replace(b"Connection: close", b"Connection: close\r\nContent-Length: 100000")
    found = ask(answered(whole[: len(whole) // 2]))
    assert isinstance(found[-1], RefusedError)
    assert found[-1].status == 200  # it had been accepted
    assert [each.num_tokens for each in found[:2]] == [0, 1]  # what had come stays


def test_a_server_without_usage_in_chunks_is_asked_without():
    def answer(body, number):
        if "continuous_usage_stats" in body["stream_options"]:
            return refusal(400, "unknown field 'stream_options.continuous_usage_stats'.")
        return completion(1)

    server = FakeServer(answer)

    async def main():
        async with HttpClient(server.url) as client:
            return [[each async for each in client.ask(REQUEST, (7,))] for _ in range(2)]

    with server:
        assert asyncio.run(main()) == 2 * [[Progress(0), Progress(1, "length"), Progress(1, "length")]]
    assert [len(body["stream_options"]) for body in server.bodies] == [2, 1, 1]


def model_of(url):
    async def main():
        async with HttpClient(url) as client:
            return await client.model()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (refusal(401, "which key?"), "answers 401: which key?"),
        (response(200, "[]"), "no list of models"),
        (response(200, '{"data": []}'), "no list of models"),
        (b"", "cannot be reached"),
    ],
)
def test_a_server_that_is_none(models, message):
    with FakeServer(models=models) as server, pytest.raises(ServerError, match=message):
        model_of(server.url)


def test_v1_in_the_url_is_the_same():
    with FakeServer() as server:
        assert model_of(server.url + "/v1/") == "fake"


@pytest.mark.parametrize("url", ["", "ftp://x", "127.0.0.1:8000", "http://", "http://a:b"])
def test_what_is_no_url(url):
    with pytest.raises(ConfigError, match="--url must be a URL such as"):
        HttpClient(url)


# -- the command

QUICK = ("bench", "serve", "--workload", "quick", "--requests", 4, "--rate", 500)


def test_the_command(twophase, tiny_folder, tmp_path):  # noqa: F811
    def answer(body, number):
        return completion(body["max_tokens"]) if number != 1 else refusal(429, "busy")

    trace = tmp_path / "trace.json"
    options = ("--model", tiny_folder, "--perfetto", trace, "--slo-ttft", 600)
    with FakeServer(answer) as server:
        exit_code, out, err = twophase(*QUICK, "--url", server.url, *options)
    assert exit_code == 0, err
    assert "3 of 4 completed" in out
    assert "(1 failed, 0 aborted, 0 unfinished)" in out
    assert "refusals by status: 429 1x" in out
    assert "within TTFT <= 600 s: 3 of 4" in out
    assert "Measured at the client" in out
    assert f"url {server.url}, model fake, loop open" in out
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert "token" in names


def test_the_command_retries_and_speaks_json(twophase, tiny_folder):  # noqa: F811
    def answer(body, number):
        return refusal(503, "starting", Retry_After="0") if number < 2 else completion(body["max_tokens"])

    options = ("--model", tiny_folder, "--retries", 3, "--concurrency", 1, "--json", "--api-key", "k")
    with FakeServer(answer) as server:
        exit_code, out, err = twophase(*QUICK, "--url", server.url, *options)
    found = json.loads(out)
    assert exit_code == 0, err
    assert (found["report"]["num_completed"], found["statuses"]) == (4, [["503", 2]])
    assert found["engine"]["loop"] == "closed, 1 clients"
    assert {headers["authorization"] for headers in server.headers} == {"Bearer k"}
    assert found["report"]["num_output_tokens"] == sum(body["max_tokens"] for body in server.bodies[2:])


def test_prompts_are_those_of_the_run_in_process(twophase, tiny_folder):  # noqa: F811
    from twophase_tools.load.workloads import Load, named_workload, token_ids_of

    with FakeServer() as server:
        twophase(*QUICK, "--url", server.url, "--model", tiny_folder, "--seed", 3)
    vocab_size = json.loads((tiny_folder / "config.json").read_text())["vocab_size"]
    expected = [
        list(token_ids_of(request, vocab_size, 3)) for request in named_workload("quick", Load(4, 500, None, 3))
    ]
    assert sorted(body["prompt"] for body in server.bodies) == sorted(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--url", "nonsense"), "--url must be a URL"),
        (("--url", "http://127.0.0.1:9", "--plot", "x.png"), "leave out --plot"),
        (("--url", "http://127.0.0.1:9", "--dtype", "float32", "--max-num-seqs", 3), "--dtype and --max-num-seqs"),
        (("--api-key", "k"), "--api-key can be given only with --url"),
        (("--retries", "1"), "--retries can be given only with --url"),
        (("--concurrency", "0"), "--concurrency: must be at least 1"),
        (("--concurrency", "2", "--burst", 2), "not allowed with"),
        (("--burst", "0"), "--burst: must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(twophase, tiny_folder, options, message):  # noqa: F811
    exit_code, out, err = twophase(*QUICK, "--model", tiny_folder, *options)
    assert (exit_code, out) == (2, "")
    assert message in err


def test_nobody_there(twophase, tiny_folder):  # noqa: F811
    with FakeServer() as server:
        pass
    exit_code, out, err = twophase(*QUICK, "--url", server.url, "--model", tiny_folder)
    assert (exit_code, out) == (1, "")
    assert "cannot be reached" in err
