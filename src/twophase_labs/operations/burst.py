"""A burst on the real server, scraped while it lasts; and alerts evaluated over what was scraped."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from twophase_labs.operations.clients import Answer, Ask, ask_all
from twophase_labs.operations.one_llm import llm
from twophase_labs.operations.scrapes import TTFT, Scrape, scrape
from twophase_server.background import BackgroundServer
from twophase_server.settings import ServerSettings

NUM_REQUESTS, EVERY_S, SLO_S, SCRAPE_S = 18, 0.12, 2.0, 0.1
MAX_QUEUE = 6
LATE_BUCKET_S = 2.5  # the histogram has no bucket that ends at the SLO

Value = Callable[[Scrape, Scrape], float]  # of a scrape, and of the first one


@dataclass(frozen=True)
class Burst:
    """What was scraped, on a clock that starts with the first request, and what the clients saw."""

    scrapes: tuple[Scrape, ...]
    answers: tuple[Answer, ...]

    @property
    def start_s(self) -> float:
        return min(answer.sent_s for answer in self.answers)

    @property
    def first_late_s(self) -> float | None:
        """When a client, refused or not, was first without a token for longer than the SLO; None: none was."""
        late = [answer.sent_s + SLO_S for answer in self.answers if (answer.ttft_s or SLO_S + 1) > SLO_S]
        return min(late) - self.start_s if late else None

    def series(self, value: Value) -> list[tuple[float, float]]:
        """(time, value) of each scrape."""
        return [(each.at_s - self.start_s, value(each, self.scrapes[0])) for each in self.scrapes]


def burst() -> Burst:
    """Eighteen requests in two seconds, of eight blocks each, for a pool that holds four of them."""
    prompt = "Write down {} again and again, until I tell you to stop: " + "apple pear plum " * 33
    answers: list[Answer] = []
    with BackgroundServer(llm(), ServerSettings(port=0, log_level="error", max_queue=MAX_QUEUE)) as server:
        asks = [Ask(prompt.format(n), 12, f"burst {n}", at_s=EVERY_S * n, tries=1) for n in range(NUM_REQUESTS)]
        scrapes = [scrape(server.url)]
        clients = threading.Thread(target=lambda: answers.extend(ask_all(server.url, asks)), name="burst")
        clients.start()
        while clients.is_alive():
            clients.join(SCRAPE_S)
            scrapes.append(scrape(server.url))
    return Burst(tuple(scrapes), tuple(answers))


def late_share(now: Scrape, first: Scrape) -> float:
    """Of the answers counted since the first scrape, the share above LATE_BUCKET_S."""

    def at_most(one: Scrape) -> float:
        return next(count for le, count in one.buckets(TTFT) if le == LATE_BUCKET_S)

    num = now.value(f"{TTFT}_count") - first.value(f"{TTFT}_count")
    return 1 - (at_most(now) - at_most(first)) / num if num else 0.0


VALUES: dict[str, Value] = {
    "K/V saturation": lambda now, first: now.value("kv_cache_usage_perc"),
    "queue age": lambda now, first: now.value("queue_age_seconds"),
    "fragmentation": lambda now, first: now.value("kv_cache_fragmentation_perc"),
    "refusals": lambda now, first: (
        now.value("requests_refused_total", status="429") - first.value("requests_refused_total", status="429")
    ),
    "late answers": late_share,
}


@dataclass(frozen=True)
class Told:
    """An alert's states over a burst."""

    name: str
    states: tuple[tuple[float, str], ...]

    @property
    def first_firing_s(self) -> float | None:
        return next((time_s for time_s, state in self.states if state == "firing"), None)

    @property
    def line(self) -> str:
        at = self.first_firing_s
        num_pending = sum(state == "pending" for _, state in self.states)
        return (
            f"{self.name:15} "
            + (f"fires after {at:5.2f} s" if at is not None else "does not fire")
            + (f", pending in {num_pending} scrapes")
        )


def play(seen: Burst, alerts: Sequence[tuple[str, Any]]) -> list[Told]:
    """Evaluate each alert, named as in VALUES, at every scrape."""
    return [
        Told(name, tuple((time_s, alert.evaluate(time_s, value)) for time_s, value in seen.series(VALUES[name])))
        for name, alert in alerts
    ]
