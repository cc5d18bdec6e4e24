"""A server under many clients, good and bad, and what it owes them: answers or reasons, nothing held when idle, no
accepted request lost by SIGTERM."""

import asyncio
import json
import os
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import MODEL
from tests.server.test_command import start, url_of

TEXT = "/v1/completions"
CONTEXT = 256  # of the tiny model
NUM_CLIENTS, LOAD_S, THINK_S = 24, 5.0, 0.3
LIMITS = ["--num-kv-blocks", "96", "--max-num-seqs", "8", "--max-queue", "12"]  # some wait, and some are refused
BUSY = (429, 503)
PATIENCE_S = 120.0  # a request that takes longer is stuck
POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)  # of an event loop's default executor
CLOSING_FILES = 2  # of connections that are just being closed

RIGHT = {"model": MODEL, "prompt": "x", "max_tokens": 1}
WRONG = [
    b"{oops", b"\xff\xfe\x00", b"[" * 5000, {}, RIGHT | {"prompt": [-1]}, RIGHT | {"temperature": "hot"},
    RIGHT | {"model": "nobody"}, RIGHT | {"prompt": [1] * (CONTEXT + 1)}, RIGHT | {"prompt": "x" * 50 * CONTEXT},
    RIGHT | {"prompt": ["x"] * 5000}, RIGHT | {"n": 10_000}, RIGHT | {"prompt": "x" * 6_000_000},
]  # fmt: skip
NOISE = [b"\x00\xff\x16\x03\x01" * 9, b"GET /v1/models HTTP/1.1\r\n", b"\r\n\r\n", b""]


class Crowd:
    """Clients of one server. Each sends one request after another, of a kind that is drawn anew."""

    def __init__(self, url):
        self.url, self.random = httpx.URL(url), random.Random(0)
        self.outcomes, self.num_open = Counter(), 0
        self.may_be_away = False  # the server is stopping: a refused connection is nobody's fault
        self.kinds = [self.behave] * 6 + [self.read_slowly, self.send_noise] + [self.vanish, self.err] * 2

    async def besiege(self, seconds):
        # No connection is used twice: a server may close an idle one just when the next request is on its way.
        limits = httpx.Limits(max_keepalive_connections=0)
        options = {"base_url": self.url, "timeout": PATIENCE_S, "limits": limits, "trust_env": False}
        async with httpx.AsyncClient(**options) as self.http, asyncio.TaskGroup() as clients:
            for _ in range(NUM_CLIENTS):
                clients.create_task(self.one_client(time.monotonic() + seconds))

    async def one_client(self, end_s):
        while time.monotonic() < end_s:
            await asyncio.sleep(self.random.uniform(0, THINK_S))
            kind = self.random.choice(self.kinds)
            try:
                what = await asyncio.wait_for(kind(), PATIENCE_S)
            except (httpx.NetworkError, httpx.RemoteProtocolError, ConnectionError):
                assert self.may_be_away
                what = "found nobody"
            self.outcomes[kind.__name__, what] += 1

    async def behave(self, most=64, pause_s=0.0, leaves_after=CONTEXT):
        """Read an answer. It has all its tokens, or the refusal says why, or the client leaves."""
        num_tokens = self.random.randint(1, most)
        prompt = self.random.choices(range(100), k=self.random.randint(1, 64))
        body = {"model": MODEL, "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
        async with self.http.stream("POST", TEXT, json=body | {"stream_options": {"include_usage": True}}) as answer:
            if answer.status_code in BUSY:
                return f"refused with {answer.status_code}"
            assert answer.status_code == 200
            self.num_open += 1
            try:
                events = []
                async for line in answer.aiter_lines():
                    events += [line] * line.startswith("data: ")
                    if len(events) > leaves_after:
                        return "gone"
                    await asyncio.sleep(pause_s)
            except httpx.TransportError as error:
                raise AssertionError("what was accepted is lost") from error
            finally:
                self.num_open -= 1
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["usage"]["completion_tokens"] == num_tokens
        return "answered"

    async def read_slowly(self):
        return await self.behave(most=16, pause_s=0.05)

    async def vanish(self):
        return await self.behave(leaves_after=self.random.randint(0, 5))

    async def err(self):
        body = self.random.choice(WRONG)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            answer = await self.http.post(TEXT, content=content, headers={"content-type": "application/json"})
        except (httpx.WriteError, httpx.RemoteProtocolError):  # told while it was sending, and went on
            return "cut off"
        assert 400 <= answer.status_code < 500 or answer.status_code in BUSY, (content[:80], answer.status_code)
        assert answer.json()["error"]["message"].strip()
        return f"refused with {answer.status_code}"

    async def send_noise(self):
        """Bytes that are no HTTP, or half of a request: any answer will do, and so will none."""
        _, writer = await asyncio.open_connection(self.url.host, self.url.port)
        writer.write(self.random.choice(NOISE))
        await writer.drain()
        writer.close()
        return "sent"


def number_in(metrics, name):
    return int(float(re.search(rf"^twophase:{name}.* ([0-9.e+]+)$", metrics, re.MULTILINE)[1]))


def idle(url, pid):
    """Once nothing runs: blocks of the pool, threads, open files (none where the system has no /proc)."""
    deadline_s, folder = time.monotonic() + PATIENCE_S, Path("/proc") / str(pid)
    while True:
        time.sleep(1.0)
        metrics = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text
        blocks = [number_in(metrics, f'kv_cache_blocks{{.*state="{state}"') for state in ("in_use", "cached", "free")]
        if number_in(metrics, "num_requests_running") + number_in(metrics, "num_requests_waiting") + blocks[0] == 0:
            return sum(blocks), *(len(list((folder / what).glob("*"))) for what in ("task", "fd"))
        assert time.monotonic() < deadline_s, f"something is stuck: {metrics}"


@pytest.mark.full
def test_a_server_owes_good_and_bad_clients_the_same(chat_folder):
    server = start("--model", chat_folder, "--device", "cpu", "--log-level", "error", *LIMITS)
    try:
        url = url_of(server)
        crowd, found = Crowd(url), []
        for _ in range(2):
            asyncio.run(crowd.besiege(LOAD_S))
            found.append(idle(url, server.pid))
        assert {kind for kind, _ in crowd.outcomes} == {kind.__name__ for kind in crowd.kinds}
        (blocks, threads, files), (blocks_again, threads_again, files_again) = found
        assert blocks_again == blocks, "a block has leaked"
        assert threads_again <= threads + POOL_THREADS
        assert files_again <= files + CLOSING_FILES
        asyncio.run(stop_under_load(crowd, server))
    finally:
        server.kill()
        server.communicate()


async def stop_under_load(crowd, server):
    """SIGTERM while somebody has something to lose: who was let in gets all of the answer."""
    siege = asyncio.create_task(crowd.besiege(LOAD_S))
    while not crowd.num_open:
        await asyncio.sleep(0.001)
    crowd.may_be_away = True
    server.send_signal(signal.SIGTERM)
    await siege
    assert await asyncio.to_thread(server.wait, PATIENCE_S) == 0
