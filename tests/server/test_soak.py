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
from contextlib import aclosing

import httpx
import pytest

from tests.server.conftest import MODEL
from tests.server.server_process import ServerProcess, free_port
from twophase_tools.bench.http_client import HttpClient, RefusedError

CONTEXT = 256  # of the tiny model
NUM_CLIENTS, LOAD_S, THINK_S = 24, 5.0, 0.3
LIMITS = ["--num-kv-blocks", "96", "--max-num-seqs", "8", "--max-queue", "12"]  # some wait, and some are refused
BUSY = (429, 503)
PATIENCE_S = 120.0  # a request that takes longer is stuck
REST_S = 60.0
POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)  # of an event loop's default executor
CLOSING_FILES = 2  # of connections that are just being closed
# Few shapes kept compiled, or memory grows by 600 MB until a thousand have been met.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}

RIGHT = {"model": MODEL, "prompt": "x", "max_tokens": 1}
WRONG = [
    ("POST", "/v1/completions", body if isinstance(body, bytes) else json.dumps(body).encode())
    for body in (
        b"{oops", b"\xff\xfe\x00", b"", b"[]", b"[" * 5000, {}, RIGHT | {"prompt": {"a": 1}}, RIGHT | {"prompt": [-1]},
        RIGHT | {"temperature": "hot"}, RIGHT | {"model": "nobody"}, RIGHT | {"prompt": [1] * (CONTEXT + 1)},
        RIGHT | {"prompt": "x" * 50 * CONTEXT}, RIGHT | {"prompt": ["x"] * 5000}, RIGHT | {"n": 10_000},
        RIGHT | {"max_tokens": -1}, RIGHT | {"logprobs": 10_000}, RIGHT | {"prompt": "x" * 6_000_000},
    )
] + [("POST", "/v1/chat/completions", b'{"messages": "hello"}'), ("GET", "/v1/completions", b""), ("POST", "/v1/nowhere", b"{}")]  # fmt: skip
NOISE = [b"\x00\xff\x16\x03\x01" * 9, b"GET /v1/models HTTP/1.1\r\n", b"\r\n\r\n", b""]


class Crowd:
    """Clients of one server. Each sends one request after another, of a kind that is drawn anew, until told to stop."""

    def __init__(self, url):
        self.url = url
        self.random = random.Random(0)
        self.outcomes, self.breaches = Counter(), []
        self.open_accepted = self.num_lost = 0
        self.may_be_away = False  # the server is being restarted: a refused connection is nobody's fault
        self.kinds = [self.behave] * 6 + [self.read_slowly, self.send_noise] + [self.vanish, self.err] * 2

    async def besiege(self, stop):
        # No connection is used twice: a server may close an idle one just when the next request is on its way.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with (
            HttpClient(self.url, timeout_s=PATIENCE_S, keep_alive=False) as self.client,
            httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, limits=limits, trust_env=False) as self.http,
            asyncio.TaskGroup() as clients,
        ):
            await self.client.model()
            for _ in range(NUM_CLIENTS):
                clients.create_task(self.one_client(stop))

    async def one_client(self, stop):
        while not stop.is_set():
            await asyncio.sleep(self.random.uniform(0, THINK_S) + self.may_be_away)
            kind = self.random.choice(self.kinds)
            try:
                what = await asyncio.wait_for(kind(), PATIENCE_S)
            except (TimeoutError, httpx.ReadTimeout):
                what = self.breach("stuck")
            self.outcomes[kind.__name__, what] += 1

    def breach(self, words):
        self.breaches.append(words)
        return "BROKEN"

    def excuse(self, error, is_accepted=False):
        """What a refusal is called if it is fair; else a breach."""
        if error.status in BUSY and not is_accepted:
            return f"refused with {error.status}"
        if error.status is None and self.may_be_away:
            return "found nobody"
        self.num_lost += is_accepted
        return self.breach(str(error))

    def request(self, most):
        token_ids = tuple(self.random.choices(range(100), k=self.random.randint(1, 64)))
        return token_ids, self.random.randint(1, most)

    async def behave(self, most=64, pause_s=0.0):
        """Read an answer to its end. It has all its tokens, or the refusal says why."""
        token_ids, num_asked = self.request(most)
        is_accepted, num_tokens = False, 0
        try:
            async with aclosing(self.client.ask(token_ids, num_asked)) as answer:
                async for progress in answer:
                    self.open_accepted += not is_accepted
                    is_accepted, num_tokens = True, progress.num_tokens
                    await asyncio.sleep(pause_s)
            return "answered" if num_tokens == num_asked else self.breach(f"{num_tokens} of {num_asked} tokens")
        except RefusedError as error:
            return self.excuse(error, is_accepted)
        finally:
            self.open_accepted -= is_accepted

    async def read_slowly(self):
        return await self.behave(most=16, pause_s=0.1)

    async def vanish(self):
        """Close the connection after a few chunks, or before the first."""
        num_chunks = self.random.randint(0, 5)
        try:
            async with aclosing(self.client.ask(*self.request(64))) as answer:
                async for progress in answer:
                    if progress.num_tokens >= num_chunks:
                        break
            return "gone"
        except RefusedError as error:
            return self.excuse(error)

    async def err(self):
        method, path, body = self.random.choice(WRONG)
        try:
            answer = await self.http.request(method, path, content=body, headers={"content-type": "application/json"})
        except httpx.ReadTimeout:
            raise
        except httpx.HTTPError as error:
            if self.may_be_away or isinstance(error, httpx.WriteError):  # told while it was sending, and went on
                return "cut off"
            return self.breach(f"{method} {path}: {error!r}")
        if not 400 <= answer.status_code < 500 and answer.status_code not in BUSY:
            return self.breach(f"{method} {path} {body[:80]!r} got {answer.status_code}")
        if not answer.json()["error"]["message"].strip():
            return self.breach(f"{method} {path}: {answer.status_code} without a word of why")
        return f"refused with {answer.status_code}"

    async def send_noise(self):
        """Bytes that are no HTTP, or half of a request: any answer will do, and so will none."""
        url = httpx.URL(self.url)
        try:
            _, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(self.random.choice(NOISE))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except OSError:
            return "found nobody" if self.may_be_away else self.breach("no connection")
        return "sent"


async def load(crowd, seconds):
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    await crowd.besiege(stop)


async def idle(server):
    """Requests, blocks by state, threads and files of the server once it rests."""
    deadline_s, found = time.monotonic() + REST_S, None
    async with httpx.AsyncClient(trust_env=False) as http:
        while time.monotonic() < deadline_s:
            await asyncio.sleep(1.0)
            sample = server.sample()
            text = (await http.get(f"{server.url}/metrics", timeout=REST_S)).text
            number = lambda name: int(float(re.search(rf"^twophase:{name}.* ([0-9.e+]+)$", text, re.M)[1]))  # noqa: B023, E731
            blocks = [number(f'kv_cache_blocks{{.*state="{state}"') for state in ("in_use", "cached", "free")]
            requests = number("num_requests_running") + number("num_requests_waiting")
            last, found = found, (requests, blocks, sample)
            if requests == blocks[0] == 0 and last and (not sample or last[2].num_files == sample.num_files):
                break
    return found


async def restart_under_load(crowd, server, start):
    """SIGTERM while somebody has something to lose; then a new server on the same port, which serves."""
    stop = asyncio.Event()
    siege = asyncio.create_task(crowd.besiege(stop))
    async with asyncio.timeout(REST_S):
        while not crowd.open_accepted:
            await asyncio.sleep(0.001)
    crowd.may_be_away = True
    server.signal(signal.SIGTERM)
    assert await server.ended(PATIENCE_S) == 0
    assert crowd.num_lost == 0
    server = start()
    await server.ready()
    crowd.may_be_away = False
    before = crowd.outcomes["behave", "answered"]
    await asyncio.sleep(LOAD_S / 2)
    stop.set()
    await siege
    assert crowd.outcomes["behave", "answered"] > before
    return server


@pytest.mark.full
def test_a_server_owes_good_and_bad_clients_the_same(chat_folder, tmp_path):
    port = free_port()
    arguments = ["serve", "--model", str(chat_folder), "--device", "cpu", "--log-level", "error", *LIMITS]
    servers = []

    def start():
        servers.append(ServerProcess("twophase_tools", arguments, port, tmp_path / "server.log", ENVIRONMENT))
        return servers[-1]

    async def soak():
        server = start()
        await server.ready()
        crowd = Crowd(server.url)
        await load(crowd, LOAD_S)
        before = await idle(server)
        await load(crowd, LOAD_S)
        after = await idle(server)
        assert after[0] == after[1][0] == 0, "something is stuck"
        assert sum(after[1]) == sum(before[1]), "a block has leaked"
        if before[2] and after[2]:
            assert after[2].num_threads <= before[2].num_threads + POOL_THREADS
            assert after[2].num_files <= before[2].num_files + CLOSING_FILES
        server = await restart_under_load(crowd, server, start)
        assert crowd.breaches == []
        assert {kind for kind, _ in crowd.outcomes} == {kind.__name__ for kind in crowd.kinds}
        assert await server.stop(PATIENCE_S) is not None

    try:
        asyncio.run(soak())
    finally:
        for server in servers:
            server.kill()
