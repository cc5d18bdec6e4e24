"""What a fleet did: engine by engine, and in total."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from twophase_tools.load.records import RequestRecord
from twophase_tools.load.report import ServingReport, window_of
from twophase_tools.load.slo import Slo
from twophase_tools.simulate.fleet import Fleet


@final
@dataclass(frozen=True)
class FleetReport:
    """A fleet after its run.

    Attributes:
        slo: What each request was promised; None: nothing.
    """

    fleet: Fleet
    slo: Slo | None = None

    @cached_property
    def records(self) -> list[RequestRecord]:
        """Of all engines."""
        return [record for replica in self.fleet.replicas for record in replica.records]

    @cached_property
    def total(self) -> ServingReport:
        return ServingReport.of(self.records, slo=self.slo)

    @cached_property
    def engines(self) -> list[ServingReport]:
        """Of each engine."""
        return [ServingReport.of(replica.records, slo=self.slo) for replica in self.fleet.replicas]

    @cached_property
    def end_s(self) -> float:
        """When the last request had ended."""
        return float(window_of(self.records)[1])

    @property
    def engine_s(self) -> float:
        """Seconds of all engines together."""
        return len(self.engines) * self.end_s

    @property
    def busy_share(self) -> float:
        """Share of those seconds that was spent in steps."""
        return sum(replica.busy_s(self.end_s) for replica in self.fleet.replicas) / self.engine_s

    @property
    def balance(self) -> float | None:
        """Tokens of the engine with the most, prompts and outputs, over the mean; 1: all have as many. None before any
        request has ended."""
        counts = [
            sum(each.num_prompt_tokens + each.num_output_tokens for each in replica.records)
            for replica in self.fleet.replicas
        ]
        return max(counts) * len(counts) / sum(counts) if sum(counts) else None

    def to_text(self) -> str:
        """A line for each engine, and what they have in common."""
        lines = [f"{'':<12}{'requests':>10}{'tokens':>12}{'hit rate':>10}{'TTFT p50':>10}{'p99':>10}{'busy':>8}"]
        for number, (replica, report) in enumerate(zip(self.fleet.replicas, self.engines, strict=True)):
            ttft, busy = report.latencies.ttft, replica.busy_s(self.end_s) / self.end_s if self.end_s else 0.0
            times = f"{'-':>10}{'-':>10}" if ttft is None else f"{ttft.p50:>10.4g}{ttft.p99:>10.4g}"
            num_tokens = report.num_prompt_tokens + report.num_output_tokens
            counts = f"{report.num_requests:>10,}{num_tokens:>12,}{report.cache_hit_rate or 0.0:>10.1%}"
            lines.append(f"{f'engine {number}':<12}{counts}{times}{busy:>8.0%}")
        shared = "" if self.balance is None else f"; the fullest had {self.balance:.2f} times the mean number of tokens"
        return "\n".join([*lines, f"{len(self.engines)} engines, {self.engine_s:,.0f} engine-seconds{shared}"])

    def to_dict(self) -> dict[str, Any]:
        engines = [report.to_dict() for report in self.engines]
        return {"engines": engines, "engine_s": self.engine_s, "balance": self.balance}
