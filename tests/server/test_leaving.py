"""Clients that go away, servers that stop, engines that die: no block is lost, and nobody waits in vain."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.server.conftest import MODEL, OPTIONS, PATIENCE_S, held, openai_client, serving, until
from tests.server.test_connections import post
from twophase import LLM, AsyncLLM
from twophase_server.background import BackgroundServer
from twophase_server.settings import ServerSettings

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
LONG = {"model": MODEL, "max_tokens": 200, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_goes_away_frees_its_blocks(server, path, streams):
    body = LONG | {"stream": streams, "n": 2} | ({"messages": HI} if path == CHAT else {"prompt": ["a", "b"]})
    before = server.llm.stats().num_aborted
    connection = post(server, body, path=path)
    until(lambda: server.llm.stats().cache.num_in_use > 0)
    if streams:
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
    connection.close()
    until(lambda: not server.llm.num_unfinished)
    until(lambda: server.llm.stats().cache.num_in_use == 0)  # as of the end of the engine's turn
    assert server.llm.stats().num_aborted > before
    until(lambda: server.app.state.service.num_in_flight == 0)


def test_a_client_that_goes_away_while_some_of_its_prompts_wait(server, monkeypatch):
    """Of two prompts the engine has accepted one."""
    from twophase_features.serving.async_llm import AsyncLLM

    real, is_second_asked = AsyncLLM.submit, threading.Event()

    async def submit(self, prompt, *args, **options):
        if prompt["prompt_token_ids"] == [7]:
            is_second_asked.set()
            await asyncio.Event().wait()
        return await real(self, prompt, *args, **options)

    monkeypatch.setattr(AsyncLLM, "submit", submit)
    before = server.llm.stats().num_aborted
    connection = post(server, LONG | {"prompt": [[5], [7]], "max_tokens": 250})
    assert is_second_asked.wait(PATIENCE_S)
    until(lambda: server.llm.stats().cache.num_in_use > 0)
    connection.close()
    until(lambda: not server.llm.num_unfinished)
    until(lambda: server.llm.stats().num_aborted == before + 1)  # as of the end of the engine's turn


def test_a_drain_loses_nothing(chat_folder):
    with serving(chat_folder) as server, ThreadPoolExecutor(4) as pool, openai_client(server) as client:

        def ask(streams):
            answer = client.completions.create(
                model=chat_folder.name, prompt="The", max_tokens=20, stream=streams, extra_body={"ignore_eos": True},
                temperature=0,
            )  # fmt: skip
            return "".join(chunk.choices[0].text for chunk in answer) if streams else answer.choices[0].text

        with httpx.Client(base_url=server.url) as http:
            assert http.get("/ready").json() == {"status": "ready"}
            with held(server):
                waiting = [pool.submit(ask, streams) for streams in (False, True, False, True)]
                until(lambda: server.llm.num_unfinished == 4)
                server.drain()
                until(lambda: http.get("/ready").status_code == 503)
                assert http.get("/ready").json() == {"status": "draining", "num_requests": 4}
                assert http.get("/health").status_code == 200
                assert "twophase:num_requests_running" in http.get("/metrics").text
                for path in (TEXT, CHAT, "/tokenize"):
                    answer = http.post(path, json={"prompt": "a"})
                    assert answer.status_code == 503
                    assert answer.json()["error"]["code"] == "draining"
        texts = [task.result() for task in waiting]
        server.join()
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url + "/health")
    assert len(set(texts)) == 1
    assert texts[0]


def test_a_drain_has_an_end(chat_folder):
    with serving(chat_folder, drain_timeout_s=0.05) as server, ThreadPoolExecutor(1) as pool:
        with held(server):
            task = pool.submit(httpx.post, server.url + TEXT, json=LONG | {"prompt": "a"}, timeout=PATIENCE_S)
            until(lambda: server.llm.num_unfinished == 1)
            server.drain()
            until(lambda: server.llm._is_stopped)
        answer = task.result()
        server.join()
    assert answer.status_code == 500
    assert "closed" in answer.json()["error"]["message"]


def test_a_crash_is_told(chat_folder, monkeypatch):
    def broken():
        raise ZeroDivisionError("planted")

    llm = LLM(chat_folder, **OPTIONS)
    settings = ServerSettings(port=0, log_level="critical")
    with BackgroundServer(llm, settings) as server, ThreadPoolExecutor(2) as pool, openai_client(server) as client:

        def ask(streams):
            answer = client.chat.completions.create(model=chat_folder.name, messages=HI, stream=streams)
            return list(answer) if streams else answer

        with held(server):
            tasks = [pool.submit(ask, streams) for streams in (False, True)]
            until(lambda: server.llm.num_unfinished == 2)
            monkeypatch.setattr(llm.engine, "step", broken)
        with pytest.raises(openai.InternalServerError, match="died of ZeroDivisionError: planted") as caught:
            tasks[0].result()
        assert (caught.value.status_code, caught.value.code) == (500, "engine_dead")
        with pytest.raises(openai.APIError, match="died of ZeroDivisionError: planted") as caught:
            tasks[1].result()
        assert caught.value.code == "engine_dead"
        with httpx.Client(base_url=server.url) as http:
            answer = http.get("/ready")
            assert answer.status_code == 503
            assert answer.json() == {"status": "dead", "reason": "the engine died of ZeroDivisionError: planted"}
            assert http.get("/health").status_code == 200
            assert http.post(TEXT, json={"prompt": "a"}).status_code == 503
            assert "engine_up" in http.get("/metrics").text


@pytest.mark.parametrize("streams", [False, True])
def test_one_request_that_fails_harms_no_other(server, client, chat_folder, monkeypatch, streams):
    """The engine ends it by 'error'; the client is told, and the engine lives."""
    from twophase.engine import model_run as module

    real = module.sample

    def sample(logits, rows, before_wait):
        if any(row.params.top_k == 13 for row in rows):
            raise RuntimeError("planted")
        return real(logits, rows)

    monkeypatch.setattr(module, "sample", sample)
    options = {"model": chat_folder.name, "messages": HI, "max_tokens": 4, "stream": streams}
    with pytest.raises(openai.APIError, match="failed while it ran: RuntimeError: planted"):
        list(client.chat.completions.create(**options, extra_body={"top_k": 13}))
    answer = client.chat.completions.create(**options)
    assert list(answer) if streams else answer.choices
    assert server.llm.is_alive


def test_an_async_llm_goes_on_when_its_server_stops(chat_folder):
    llm = LLM(chat_folder, **OPTIONS)
    served = AsyncLLM.of(llm)
    with BackgroundServer(served) as server:
        assert httpx.post(server.url + TEXT, json={"model": MODEL, "prompt": "a", "max_tokens": 1}).status_code == 200
        server.stop()
        server.stop()
    assert served.is_alive
    served.close()
    assert llm.generate("a", use_tqdm=False)[0].finished
