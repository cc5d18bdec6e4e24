"""The lab's first cell: six clients at once, timed by the server and by themselves. The last cell does it again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twophase_labs.operations.clients import Answer, Ask, Reader, ask_all
from twophase_labs.operations.one_llm import llm
from twophase_labs.operations.own_bucket import limit_requests, settings_with
from twophase_labs.operations.scrapes import TTFT, Scrape, scrape
from twophase_server.background import BackgroundServer

CITIES = ("France", "Italy", "Spain", "Greece", "Portugal", "Norway")
AT_ONCE = 2


@dataclass(frozen=True)
class TwoClocks:
    """One load, seen from both sides."""

    scrape: Scrape
    answers: tuple[Answer, ...]

    @property
    def server_s(self) -> float:
        """Mean time to first token in the server's histogram."""
        return self.scrape.mean(TTFT)

    @property
    def client_s(self) -> float:
        """Mean over the clients, by their own clocks."""
        return sum(answer.ttft_s or 0.0 for answer in self.answers) / len(self.answers)

    @property
    def server_line(self) -> str:
        return _line("by the server's /metrics", self.scrape.value(f"{TTFT}_count"), self.server_s)

    @property
    def client_line(self) -> str:
        return _line("by the clients' clocks", len(self.answers), self.client_s)

    @property
    def num_refusals(self) -> int:
        return sum(len(answer.waits_s) for answer in self.answers)


def _line(name: str, count: float, seconds: float) -> str:
    return f"{name:25} {count:.0f} requests, {1e3 * seconds:6,.0f} ms to the first token on average"


def six_at_once(
    make_bucket: Callable[..., Any] | None = None, make_reader: Callable[[], Reader] | None = None
) -> TwoClocks:
    """Six requests of one tenant in the same moment.

    Args:
        make_bucket: A bucket in the place of the tenant's limit of two requests at a time: 1 a second, 6 at once.
    """
    limits = f"concurrent_requests = {AT_ONCE}" if make_bucket is None else ""
    with BackgroundServer(llm(), settings_with({"notes": limits})) as server:
        if make_bucket is not None:
            limit_requests(server, "notes", make_bucket, 1.0, 6.0)
        asks = [Ask(f"The capital of {country} is", 4, country, key="notes") for country in CITIES]
        answers = ask_all(server.url, asks, make_reader)
        return TwoClocks(scrape(server.url), tuple(answers))
