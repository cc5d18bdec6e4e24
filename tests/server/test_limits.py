"""How much is let in: bodies, prompts, the queue, deadlines, tenants' quotas."""

import itertools
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import openai
import pytest

from tests.server.conftest import MODEL, PATIENCE_S, error_of, held, openai_client, serving, until
from tests.server.test_connections import post
from twophase_features.serving import async_llm

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]

KEYS = """
[tenants.alice]
keys = ["sk-alice", "sha256:{digest}"]
concurrent_requests = 2

[tenants.carol]
keys = ["sk-carol"]
tokens_per_minute = 10

[tenants.dora]
keys = ["sk-dora"]
best_priority = -3
"""


@pytest.fixture(scope="module")
def server(chat_folder, tmp_path_factory):
    import hashlib

    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS.format(digest=hashlib.sha256(b"sk-other").hexdigest()))
    with serving(
        chat_folder, api_keys=keys, max_queue=3, max_body_bytes=2000, max_prompt_tokens=100, max_prompts=2, max_n=3
    ) as server:
        yield server


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers={"authorization": "Bearer sk-alice"}) as http:
        yield http


def body_of(size):
    body = b'{"model": "%s", "prompt": "", "max_tokens": 1}' % MODEL.encode()
    return body.replace(b'""', b'"' + b"a " * ((size - len(body)) // 2) + b"a" * ((size - len(body)) % 2) + b'"')


def test_a_body_up_to_its_limit(http):
    headers = {"content-type": "application/json"}
    assert len(body_of(2000)) == 2000
    assert "max_model_len=256" in error_of(http.post(TEXT, content=body_of(2000), headers=headers), 400)["message"]
    error = error_of(http.post(TEXT, content=body_of(2001), headers=headers), 413)
    assert (error["code"], error["message"]) == (
        "body_too_large",
        "the body must have at most 2000 bytes, got 2001 or more.",
    )
    # Its length is not said beforehand.
    error_of(http.post(TEXT, content=iter([body_of(2000), b" "]), headers=headers), 413)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": list(range(3, 104)), "max_tokens": 1}, "a prompt must have at most 100 tokens, got 101"),
        ({"prompt": ["a"] * 3}, "prompt must have at most 2 prompts, got 3"),
        ({"prompt": "a", "n": 4}, "n must be at most 3, got 4"),
    ],
)
def test_more_than_is_served(http, body, words):
    assert words in error_of(http.post(TEXT, json={"model": MODEL} | body), 400)["message"]


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer sk-mallory", "Basic sk-alice", "Bearer sk-alic", "sk-alice"])
@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/models", "/tokenize", "/detokenize"])
def test_no_key_no_answer(server, key, path):
    with httpx.Client(base_url=server.url, headers={"authorization": key} if key else {}) as http:
        answer = http.get(path) if path.endswith("models") else http.post(path, json={"prompt": "hi"})
    assert error_of(answer, 401)["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_probes_need_no_key(server):
    assert {httpx.get(server.url + path).status_code for path in ("/health", "/ready", "/metrics")} == {200}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("end", ["finish", "gone", "deadline", "failure", "close"])
def test_tokens_are_charged_however_a_request_ends(chat_folder, tmp_path, monkeypatch, end, streams):
    """The prompt once, and what the engine counts of both completions; after the fifth step something happens."""
    keys, jump_s, monotonic = tmp_path / "keys.toml", [0.0], time.monotonic
    keys.write_text(KEYS.format(digest="00" * 32))
    monkeypatch.setattr(async_llm, "time", SimpleNamespace(monotonic=lambda: monotonic() + jump_s[0]))
    with serving(chat_folder, api_keys=keys) as server:
        engine, account = server.llm.llm.engine, server.app.state.service.tenants.find("Bearer sk-carol")
        account.tokens._now_s = lambda: account.tokens._since_s  # nothing comes back
        scheduler = engine._scheduler

        def fail():
            for seq_id in list(scheduler.sequences):
                engine._report(scheduler.fail(seq_id, ValueError("planted")))

        happens = {
            "finish": lambda: None,
            "gone": lambda: connection.shutdown(socket.SHUT_RDWR),
            "deadline": lambda: jump_s.append(jump_s.pop() + 4000),
            "failure": fail,
            "close": server.llm.close,
        }
        step, numbers, tenants = engine.step, itertools.count(1), []

        def planted():
            outputs = step()
            if next(numbers) == 5:
                tenants.extend(state.request.tenant for state in engine._requests.values())
                happens[end]()
            return outputs

        monkeypatch.setattr(engine, "step", planted)
        body = {"model": MODEL, "prompt": [3, 4, 5, 6, 7, 8, 9], "n": 2, "max_tokens": 200, "ignore_eos": True}
        body |= {"stream": streams, "deadline_s": 3600}
        connection = post(server, body, "authorization: Bearer sk-carol\r\n")
        until(lambda: account.num_running == 1)
        until(lambda: account.num_running == server.llm.num_unfinished == 0 and account.tokens._left < 10)
        connection.close()
        num_new = engine.stats().num_output_tokens
        assert tenants == ["carol"]
        assert (num_new == 400) is (end == "finish")
        assert 10 - account.tokens._left == 7 + num_new > 7
        with openai_client(server, "sk-carol") as client, pytest.raises(openai.APIStatusError) as caught:
            client.models.list()
        assert caught.value.code == ("engine_dead" if end == "close" else "rate_limit_exceeded")


def test_what_leaves_the_queue_is_free(server):
    account = server.app.state.service.tenants.find("Bearer sk-carol")
    account.tokens._now_s = lambda: account.tokens._since_s
    before = account.tokens._left, server.llm.stats().num_output_tokens
    with held(server):
        with post(server, {"model": MODEL, "prompt": "hi"}, "authorization: Bearer sk-carol\r\n"):
            until(lambda: server.llm.num_unfinished == 1)
        until(lambda: len(server.llm._inbox) == 2)  # to be added, and to be aborted
    until(lambda: account.num_running == server.llm.num_unfinished == 0)
    assert (account.tokens._left, server.llm.stats().num_output_tokens) == before


def test_a_priority_up_to_the_best_of_its_tenant(server, http):
    def ask(priority, key):
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 1, "priority": priority}
        return http.post(TEXT, json=body, headers={"authorization": f"Bearer {key}"})

    assert [ask(*asked).status_code for asked in ((0, "sk-alice"), (-3, "sk-dora"))] == [200, 200]
    for priority, key, words in ((-1, "sk-alice", ">= 0 for 'alice'"), (-4, "sk-dora", ">= -3 for 'dora'")):
        error = error_of(ask(priority, key), 400)
        assert (error["param"], error["code"]) == ("priority", None)
        assert f"priority must be {words} (lower runs first), got {priority}" in error["message"]


def test_tenants_share_no_prefix(server):
    prompt = list(range(203, 290))

    def cached(key, **more):
        with openai_client(server, key) as client:
            answer = client.completions.create(
                model=server.llm.model_name, prompt=prompt, max_tokens=1, extra_body=more
            )
        return answer.usage.prompt_tokens_details.cached_tokens

    assert cached("sk-alice") == 0
    assert cached("sk-alice") == 84
    assert cached("sk-other") == 84  # the same tenant
    assert cached("sk-alice", cache_salt="mine") == 0
    assert cached("sk-carol") == 0
    assert cached("sk-alice", cache_salt="mine") == 84


def test_a_full_queue(chat_folder):
    with serving(chat_folder, max_queue=3) as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:

        def ask(prompt):
            return http.post(TEXT, json={"model": MODEL, "prompt": prompt, "max_tokens": 2})

        with ThreadPoolExecutor(3) as pool:
            with held(server):
                waiting = [pool.submit(ask, "hi") for _ in range(3)]
                until(lambda: server.llm.num_unfinished == 3)
                answer = ask("hi")
                error = error_of(answer, 429)
                assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
                assert "at most 3 requests may wait" in error["message"]
                assert int(answer.headers["retry-after"]) >= 1
                assert ask(3).status_code == 429  # before anybody looks at what is asked
            assert [task.result().status_code for task in waiting] == [200] * 3
        assert ask("hi").status_code == 200
        # All prompts of a request or none.
        assert len(ask(["a", "b"]).json()["choices"]) == 2


@pytest.mark.parametrize("streams", [False, True])
def test_a_deadline(chat_folder, streams):
    with serving(chat_folder, deadline_s=3600) as server, openai_client(server) as client:

        def ask(**more):
            options = {"model": chat_folder.name, "messages": HI, "max_tokens": 4, "stream": streams}
            answer = client.chat.completions.create(**options, extra_body=more)
            return list(answer) if streams else answer

        assert ask()
        with ThreadPoolExecutor(1) as pool:
            with held(server):
                task = pool.submit(ask, deadline_s=0.05)
                until(lambda: server.llm.num_unfinished == 1)
                time.sleep(0.1)  # later than this it has passed, on any machine
            with pytest.raises(openai.APIError, match="not finished by its deadline") as caught:
                task.result()
            assert caught.value.code == "deadline_exceeded"
            assert streams or caught.value.status_code == 504


@pytest.mark.parametrize(("own", "expected_s"), [(None, 700), (300, 300), (900, 700)])
def test_a_client_may_ask_for_a_nearer_deadline(chat_folder, own, expected_s):
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 1} | ({} if own is None else {"deadline_s": own})
    with serving(chat_folder, deadline_s=700) as server, ThreadPoolExecutor(1) as pool:
        with held(server):
            task = pool.submit(httpx.post, server.url + TEXT, json=body, timeout=PATIENCE_S)
            until(lambda: server.llm.num_unfinished == 1)
            (job,) = server.llm._jobs.values()
        assert task.result().status_code == 200
    assert job.deadline_s - job.arrival_s == pytest.approx(expected_s)
