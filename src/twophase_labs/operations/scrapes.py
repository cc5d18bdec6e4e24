"""What /metrics says at a moment, read by Prometheus' own parser."""

import math
import time
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

PREFIX = "twophase:"
TTFT = "time_to_first_token_seconds"


@dataclass(frozen=True)
class Scrape:
    """All samples of one reading.

    Attributes:
        at_s: When it was read, on the clock of `time.monotonic`.
    """

    at_s: float
    samples: tuple[Sample, ...]

    def value(self, name: str, **labels: str) -> float:
        """Of a gauge or counter; the sum, where several series have these labels; 0 where none has."""
        found = (s.value for s in self.samples if s.name == PREFIX + name and labels.items() <= s.labels.items())
        return math.fsum(found)

    def buckets(self, name: str) -> list[tuple[float, float]]:
        """Of a histogram: (upper bound, how many values are at most that)."""
        found = [s for s in self.samples if s.name == f"{PREFIX}{name}_bucket"]
        return sorted((math.inf if s.labels["le"] == "+Inf" else float(s.labels["le"]), s.value) for s in found)

    def mean(self, name: str) -> float:
        """Of a histogram's values; nan if it has none."""
        count = self.value(f"{name}_count")
        return self.value(f"{name}_sum") / count if count else math.nan


def scrape(url: str) -> Scrape:
    text = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    samples = tuple(sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return Scrape(time.monotonic(), samples)


def wait_until_idle(url: str, timeout_s: float = 60.0) -> Scrape:
    """Read /metrics until nothing runs and nothing waits.

    Raises:
        TimeoutError: It goes on.
    """
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        found = scrape(url)
        if not found.value("num_requests_running") + found.value("num_requests_waiting"):
            return found
    raise TimeoutError(f"the engine was not idle within {timeout_s:g} s")
