"""What a server does with requests that are not answered in full: left, late, refused, and the last ones."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from twophase.config import DEFAULT_MODEL
from twophase_labs.operations.clients import Ask, ask_all
from twophase_labs.operations.one_llm import llm
from twophase_labs.operations.own_bucket import limit_requests, settings_with
from twophase_labs.operations.scrapes import Scrape, scrape, wait_until_idle
from twophase_server.background import BackgroundServer

POEM = {
    "model": DEFAULT_MODEL,
    "prompt": "Write a long poem about the sea.\n",
    "max_tokens": 200,
    "temperature": 0,
    "stream": True,
}


def chunks_of(url: str, prompt: str, max_tokens: int) -> list[bytes]:
    """The bytes of a streamed completion, as they came."""
    body = {**POEM, "prompt": prompt, "max_tokens": max_tokens}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60, trust_env=False) as response:
        return list(response.iter_raw())


def leave_after_first_chunk(url: str) -> tuple[Scrape, Scrape]:
    """Ask for 200 tokens, read until the first chunk, and go away: /metrics before and after."""
    with httpx.stream("POST", f"{url}/v1/completions", json=POEM, timeout=60, trust_env=False) as response:
        chunks = response.iter_raw()
        next(chunks)
        before = scrape(url)
    return before, wait_until_idle(url)


def state_line(name: str, seen: Scrape) -> str:
    running, blocks = seen.value("num_requests_running"), seen.value("kv_cache_blocks", state="in_use")
    return f"{name:7} {running:.0f} running, {blocks:.0f} blocks in use, {_aborted(seen):.0f} aborted"


def _aborted(seen: Scrape) -> float:
    return seen.value("request_success_total", finished_reason="abort")


def flood(make_bucket: Callable[..., object], num_requests: int = 10) -> list[str]:
    """As many requests of one tenant at once, tried once each; its bucket holds 6 and gets one back in two seconds."""
    with BackgroundServer(llm(), settings_with({"notes": ""})) as server:
        limit_requests(server, "notes", make_bucket, 0.5, 6.0)
        asks = [Ask(f"{number} plus 1 is", 2, f"{number}", key="notes", tries=1) for number in range(num_requests)]
        answers = ask_all(server.url, asks)
    refused = [answer for answer in answers if answer.status == 429]
    told = sorted({answer.error for answer in refused})
    return [
        f"{sum(answer.status == 200 for answer in answers)} answered",
        f"{len(refused)} refused with 429, retry-after {', '.join(told)} s",
    ]


def past_its_deadline() -> list[str]:
    """A request whose deadline is much too soon: what its client reads, and what is left of it."""
    with BackgroundServer(llm()) as server:
        body = {**POEM, "stream": False, "deadline_s": 0.3}
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False)
        idle = wait_until_idle(server.url)
        return [
            f"status {response.status_code}: {response.json()['error']['message']}",
            state_line("after", idle),
        ]


def drained() -> list[str]:
    """A server that is told to stop while it answers: what the running request gets, and what the next one."""
    said = []
    with BackgroundServer(llm()) as server, in_the_background(server.url, 24) as lines:
        _wait_for(lambda: scrape(server.url).value("num_requests_running") == 1)
        server.drain()
        _wait_for(lambda: httpx.get(f"{server.url}/ready", trust_env=False).status_code == 503)
        late = httpx.post(f"{server.url}/v1/completions", json=POEM, timeout=60, trust_env=False)
        said.append(f"a new request: status {late.status_code}, {late.json()['error']['code']}")
    return [*said, *lines]


@contextmanager
def in_the_background(url: str, max_tokens: int) -> Iterator[list[str]]:
    """A request that runs meanwhile; what became of it is in the list afterwards."""
    lines: list[str] = []

    def run() -> None:
        (answer,) = ask_all(url, [Ask("Write a long poem about the sea.\n", max_tokens, "running")])
        lines.append(f"the running request: status {answer.status}, {len(answer.text)} characters, to its end")

    thread = threading.Thread(target=run, name="running")
    thread.start()
    try:
        yield lines
    finally:
        thread.join()


def _wait_for(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError("the server did not get there in time")
