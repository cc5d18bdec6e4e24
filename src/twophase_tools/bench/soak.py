"""`twophase bench soak`: a server under many clients, good and bad, for minutes. Each promise is held or broken.

    load         all clients; after a while they rest, and what the idle server holds is the baseline
    more load    then they rest again: nothing may be stuck, and the idle server holds what it held before
    SIGTERM      in the middle of more load; the server finishes what it accepted, ends, and is started again
    crash        a fault is planted in the engine while clients wait: each is told, and /ready turns red

All traffic goes to 127.0.0.1, and the command ends by itself.
"""

import asyncio
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import httpx

from twophase.core.errors import ConfigError
from twophase_tools.bench.clients import RefusedError
from twophase_tools.bench.http_client import HttpClient
from twophase_tools.bench.machine import record_machine
from twophase_tools.bench.server_process import Sample, ServerProcess, free_port
from twophase_tools.bench.soak_clients import Crowd, Tally
from twophase_tools.bench.soak_report import GROWTH_LIMIT, Promise, SoakReport
from twophase_tools.load.workloads import TimedRequest

SERVER = "twophase_tools.bench.soak_server"
CONTEXT = 512
NUM_BLOCKS, MAX_SEQS, MAX_QUEUE = 1024, 64, 96  # too few for 200 clients: some wait, and some are refused
# oneDNN, and torch on top of it, keep a compiled product for each shape that they have met, 1,024 by default: some
# 600 MB, and memory grows until then. With few of them a leak can be told from that.
FEW = "64"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": FEW, "LRU_CACHE_CAPACITY": FEW}
THINK_S = 0.5
PARTS = {"warm-up": 0.25, "load": 0.55, "restart": 0.2}  # shares of the time
SHORTEST_S = 4.0
STEADY_S = 60.0  # in less time not everything has happened once, and the memory that it takes is not there yet
MOST_CLIENTS = 2000
WAITING_CLIENTS = 32  # when the engine crashes
POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)  # of an event loop's default executor
CLOSING_FILES = 2  # of connections that are just being closed
REST_LIMIT_S = 60.0
STOP_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Books:
    """What the idle server says of itself in /metrics, and the system of the server."""

    num_running: int
    num_waiting: int
    blocks_in_use: int
    blocks_cached: int
    blocks_free: int
    sample: Sample | None

    @property
    def is_idle(self) -> bool:
        return self.num_running == self.num_waiting == self.blocks_in_use == 0


def bench_soak(
    *,
    num_clients: int = 200,
    duration_s: float | int = 300,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
    server: str = SERVER,
) -> SoakReport:
    """Soak a server of a tiny random model.

    Args:
        duration_s: Of load; starting, resting and stopping come on top.
        server: The module that is run: the command `twophase serve`, with the hook of `soak_server`.

    Raises:
        ConfigError: An option that cannot work.
        ServerProcessError: The server does not start, or cannot be asked how it is.
    """
    if not 1 <= num_clients <= MOST_CLIENTS:
        raise ConfigError(f"--clients must be in [1, {MOST_CLIENTS}], got {num_clients}.")
    if not SHORTEST_S <= duration_s <= 24 * 3600:
        raise ConfigError(f"--seconds must be in [{SHORTEST_S:g}, 86400], got {duration_s!r}.")
    from twophase_tools.bench.tiny_model import write_tiny_model

    with tempfile.TemporaryDirectory(prefix="twophase-soak-") as name:
        folder = Path(name)
        (folder / "model").mkdir()
        write_tiny_model(folder / "model", CONTEXT)
        soak = _Soak(server, folder, num_clients, float(duration_s), seed, say)
        try:
            return asyncio.run(soak.run())
        except httpx.HTTPError as error:
            raise ServerProcessError(f"the server does not answer ({error!r}):\n{soak.last_words()}") from error
        finally:
            soak.kill()


@final
class _Soak:
    """A soak on its way. Only `bench_soak` changes it."""

    def __init__(
        self, module: str, folder: Path, num_clients: int, duration_s: float, seed: int, say: Callable[[str], None]
    ) -> None:
        self._module, self._folder, self._seed, self._say = module, folder, seed, say
        self._num_clients, self._duration_s = num_clients, duration_s
        self._port = free_port()
        self._server = self._start()
        self._promises: list[Promise] = []

    def _start(self) -> ServerProcess:
        limits = {"--num-kv-blocks": NUM_BLOCKS, "--max-num-seqs": MAX_SEQS, "--max-queue": MAX_QUEUE}
        arguments = ["--model", str(self._folder / "model"), "--device", "cpu", "--log-level", "error"]
        arguments += [str(word) for option in limits.items() for word in option]
        return ServerProcess(self._module, arguments, self._port, self._folder / "server.log", ENVIRONMENT)

    def kill(self) -> None:
        self._server.kill()

    def last_words(self) -> str:
        return self._server.last_words()

    async def run(self) -> SoakReport:
        self._say("starting the server")
        await self._server.ready()
        vocab_size = 257
        async with Crowd(self._server.url, CONTEXT, vocab_size, THINK_S, self._seed) as crowd:
            before = await self._load_and_rest(crowd, "warm-up")
            after = await self._load_and_rest(crowd, "load")
            self._judge_idle(before, after)
            await self._restart_under_load(crowd)
            tally = crowd.tally
            await self._crash()
        self._judge_answers(tally)
        status = await self._server.stop(STOP_LIMIT_S)
        self._promise("a server whose engine died stops", status is not None, f"exit status {status}")
        return SoakReport(
            self._num_clients,
            self._duration_s,
            self._seed,
            tally.num_requests,
            tuple(sorted((kind, what, count) for (kind, what), count in tally.outcomes.items())),
            tuple(tally.breaches),
            tuple(self._promises),
            record_machine(),
        )

    def _promise(self, words: str, is_held: bool | None, figures: str) -> None:
        self._promises.append(Promise(words, is_held, figures))

    # -- load, and what is left of it

    async def _load_and_rest(self, crowd: Crowd, part: str) -> Books:
        seconds = PARTS[part] * self._duration_s
        self._say(f"{part}: {self._num_clients} clients for {seconds:.0f} s")
        await self._besiege(crowd, seconds)
        self._say(f"{part}: {crowd.tally.num_requests:,} requests so far, {crowd.tally.num_breaches} breaches; resting")
        return await self._rest()

    async def _besiege(self, crowd: Crowd, seconds: float) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, stop.set)
        await crowd.besiege(self._num_clients, stop)

    async def _rest(self) -> Books:
        """The server's books once it is idle and holds no connection of a client, or when that takes too long."""
        deadline_s = time.monotonic() + REST_LIMIT_S
        books = await self._books()
        while time.monotonic() < deadline_s:
            await asyncio.sleep(1.0)
            last, books = books, await self._books()
            if books.is_idle and last.sample is not None and books.sample is not None:
                if last.sample.num_files == books.sample.num_files:
                    break
            elif books.is_idle and books.sample is None:
                break
        return books

    async def _books(self) -> Books:
        sample = self._server.sample()  # first: the server closes the next line's connection a little later
        async with httpx.AsyncClient(trust_env=False) as http:
            text = (await http.get(f"{self._server.url}/metrics", timeout=REST_LIMIT_S)).text
        in_use, cached, free = (int(_metric(text, f'kv_cache_blocks{{.*state="{state}"')) for state in _STATES)
        return Books(
            num_running=int(_metric(text, "num_requests_running")),
            num_waiting=int(_metric(text, "num_requests_waiting")),
            blocks_in_use=in_use,
            blocks_cached=cached,
            blocks_free=free,
            sample=sample,
        )

    def _judge_idle(self, before: Books, after: Books) -> None:
        self._promise(
            "nothing is stuck in the engine",
            after.num_running == after.num_waiting == 0,
            f"{after.num_running} running, {after.num_waiting} waiting at rest",
        )
        total = after.blocks_in_use + after.blocks_cached + after.blocks_free
        self._promise(
            "no block leaks",
            after.blocks_in_use == 0 and total == before.blocks_in_use + before.blocks_cached + before.blocks_free,
            f"{after.blocks_in_use} of {total} in use, {after.blocks_cached} cached, {after.blocks_free} free at rest",
        )
        first, last = before.sample, after.sample
        if first is None or last is None:
            for what in ("no thread is left over", "no file descriptor is left over", "memory is flat"):
                self._promise(what, None, "not measured here: the system has no /proc")
            return
        threads, files = (first.num_threads, last.num_threads), (first.num_files, last.num_files)
        self._promise(
            "no thread is left over",
            threads[1] <= threads[0] + POOL_THREADS,
            f"{threads[0]} before, {threads[1]} after; Python's pool may start {POOL_THREADS} when they are needed",
        )
        self._promise(
            "no file descriptor is left over",
            files[1] <= files[0] + CLOSING_FILES,
            f"{files[0]} before, {files[1]} after",
        )
        growth = last.resident_bytes / first.resident_bytes - 1
        self._promise(
            "memory is flat",
            last.resident_bytes <= (1 + GROWTH_LIMIT) * first.resident_bytes if self._duration_s >= STEADY_S else None,
            f"{first.resident_bytes / 2**20:.1f} MiB before, {last.resident_bytes / 2**20:.1f} after: "
            f"{100 * growth:+.1f} %, {100 * GROWTH_LIMIT:g} % allowed"
            + ("" if self._duration_s >= STEADY_S else f"; it takes {STEADY_S:g} s to tell"),
        )

    def _judge_answers(self, tally: Tally) -> None:
        first = [
            Promise(
                "each request is answered or told why not",
                tally.num_breaches == 0,
                f"{tally.num_requests:,} requests, {tally.num_breaches} not",
            ),
            Promise("no request is stuck", tally.num_stuck == 0, f"{tally.num_stuck} of {tally.num_requests:,}"),
        ]
        self._promises[:0] = first

    # -- SIGTERM

    async def _restart_under_load(self, crowd: Crowd) -> None:
        seconds = PARTS["restart"] * self._duration_s
        self._say(f"restart: SIGTERM after {seconds / 2:.0f} s of load")
        stop = asyncio.Event()
        siege = asyncio.create_task(crowd.besiege(self._num_clients, stop))
        await asyncio.sleep(seconds / 2)
        with suppress(TimeoutError):  # at a moment when somebody has something to lose
            async with asyncio.timeout(REST_LIMIT_S):
                while not crowd.tally.open_accepted:
                    await asyncio.sleep(0.001)
        num_accepted = crowd.tally.open_accepted
        crowd.tally.may_be_away = True
        self._server.signal(signal.SIGTERM)
        status = await self._server.ended(STOP_LIMIT_S)
        num_lost = crowd.tally.num_lost
        self._server.kill()
        self._promise(
            "SIGTERM loses no accepted request",
            status == 0 and num_lost == 0 and num_accepted > 0,
            f"{num_accepted} under way, {num_lost} lost, exit status {status}",
        )
        began_s = time.monotonic()
        self._server = self._start()
        await self._server.ready()
        ready_s = time.monotonic() - began_s
        crowd.tally.may_be_away = False
        is_answered = crowd.tally.outcomes["well-formed", "answered"]
        await asyncio.sleep(seconds / 2)
        stop.set()
        await siege
        num_answered = crowd.tally.outcomes["well-formed", "answered"] - is_answered
        self._promise(
            "a server started after it serves",
            num_answered > 0,
            f"ready after {ready_s:.1f} s, {num_answered:,} answered since",
        )

    # -- a dead engine

    async def _crash(self) -> None:
        num_waiting = min(self._num_clients, WAITING_CLIENTS)
        self._say(f"crash: a fault in the engine while {num_waiting} clients wait")
        accepted = [asyncio.Event() for _ in range(num_waiting)]
        async with HttpClient(self._server.url, timeout_s=REST_LIMIT_S, keep_alive=False) as client:
            await client.model()
            waiting = [asyncio.create_task(_wait_for_all(client, event)) for event in accepted]
            with suppress(TimeoutError):
                async with asyncio.timeout(REST_LIMIT_S):
                    await asyncio.gather(*(event.wait() for event in accepted))
            self._server.signal(signal.SIGUSR1)
            ends = await asyncio.gather(*waiting)
            late = await _wait_for_all(client, asyncio.Event())
        num_told, num_done = ends.count("told"), ends.count("done")
        others = sorted({end for end in ends if end not in ("told", "done")})
        self._promise(
            "who waits for a dead engine is told",
            num_told > 0 and num_told + num_done == num_waiting,
            f"{num_told} told, {num_done} were done before, {num_waiting - num_told - num_done} not"
            + "".join(f"; {end}" for end in others[:2]),
        )
        async with httpx.AsyncClient(trust_env=False) as http:
            ready = await http.get(f"{self._server.url}/ready", timeout=REST_LIMIT_S)
        self._promise("/ready turns red", ready.status_code == 503, f"{ready.status_code}: {ready.text[:100]}")
        self._promise("who comes later is told, too", late == "told", late)


async def _wait_for_all(client: HttpClient, accepted: asyncio.Event) -> str:
    """Ask for as much as there is; 'told' if the server says in words that it failed, 'done' if it did not fail."""
    request = TimedRequest("soak", 0.0, 1, CONTEXT - 1)
    try:
        async for _ in client.ask(request, (1,)):
            accepted.set()
        return "done"
    except RefusedError as error:
        is_told = error.status in (500, 503) or (error.status == 200 and "ended in an error" in str(error))
        return "told" if is_told and str(error).partition(":")[2].strip() else str(error)
    finally:
        accepted.set()


_STATES = ("in_use", "cached", "free")


def _metric(text: str, name: str) -> float:
    """Of Prometheus text. `name` is a regular expression of what stands behind 'twophase:'."""
    found = re.search(rf"^twophase:{name}[^ ]* ([0-9.e+]+)$", text, re.MULTILINE)
    if found is None:
        raise ConfigError(f"the server's /metrics has no twophase:{name}; is it another version of twophase?")
    return float(found[1])
