"""What is kept of a simulation: everything, as the engine would report it, or a summary in constant memory."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from twophase.core.plan import StepTrace
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.slo import Slo
from twophase_tools.simulate.histogram import RELATIVE_ERROR, Histogram
from twophase_tools.simulate.progress import RequestProgress


class Observer(abc.ABC):
    """Hears what a replica does.

    Attributes:
        wants_details: Whether it needs every step's trace and every token's time; without, long stretches of decodes
            are told as one.
    """

    wants_details: bool

    @abc.abstractmethod
    def note_step(self, trace: StepTrace) -> None:
        """A step has ended; called only if `wants_details`."""

    @abc.abstractmethod
    def note_gaps(self, gaps_s: Sequence[float | int], num_sequences: int) -> None:
        """In each of so many sequences, tokens came after these gaps (which never fall)."""

    @abc.abstractmethod
    def note_end(self, progress: RequestProgress) -> None:
        """A request's last completion has ended."""


@final
@dataclass(slots=True)
class Recorder(Observer):
    """Keeps everything: what became of each request, in the order of their ends, and each step's trace."""

    records: list[RequestRecord] = field(default_factory=list)
    steps: list[StepTrace] = field(default_factory=list)
    wants_details: bool = field(default=True, init=False)

    def note_step(self, trace: StepTrace) -> None:
        self.steps.append(trace)

    def note_gaps(self, gaps_s: Sequence[float | int], num_sequences: int) -> None:
        pass  # every token's time is in the records

    def note_end(self, progress: RequestProgress) -> None:
        self.records.append(progress.record())


@final
@dataclass(slots=True)
class Tally(Observer):
    """Keeps histograms and counts: as large after a million requests as after one.

    Attributes:
        slo: What each request was promised; None: nothing.
        num_kept: Requests that kept it.
        num_cached_tokens: Of prompts: found in the prefix cache.
        ttft, tpot, latency: Of requests, in seconds. `itl`: of the gaps between tokens.
        last_end_s: When the last request ended.
    """

    slo: Slo | None = None
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    latency: Histogram = field(default_factory=Histogram)
    num_requests: int = 0
    num_kept: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    first_arrival_s: float | int = float("inf")
    last_end_s: float | int = 0.0
    wants_details: bool = field(default=False, init=False)

    def note_step(self, trace: StepTrace) -> None:
        raise AssertionError("a tally wants no details")

    def note_gaps(self, gaps_s: Sequence[float | int], num_sequences: int) -> None:
        self.itl.add_ascending(gaps_s, num_sequences)

    def note_end(self, progress: RequestProgress) -> None:
        request = progress.request
        self.num_requests += 1
        self.num_prompt_tokens += len(request.prompt_token_ids)
        self.num_cached_tokens += progress.num_cached_tokens
        self.num_output_tokens += progress.num_output_tokens
        self.num_preemptions += progress.num_preemptions
        if self.slo is not None:
            self.num_kept += self.slo.is_met(progress.ttft_s, progress.tpot_s)
        self.first_arrival_s = min(self.first_arrival_s, request.arrival_s)
        if progress.finished_s is not None:
            self.last_end_s = max(self.last_end_s, progress.finished_s)
            self.latency.add(progress.finished_s - request.arrival_s)
        if progress.ttft_s is not None:
            self.ttft.add(progress.ttft_s)
        if progress.tpot_s is not None:
            self.tpot.add(progress.tpot_s)

    @property
    def elapsed_s(self) -> float:
        """From the first arrival to the last end."""
        return max(0.0, float(self.last_end_s - self.first_arrival_s)) if self.num_requests else 0.0

    @property
    def output_tokens_per_s(self) -> float | None:
        return self.num_output_tokens / self.elapsed_s if self.elapsed_s else None

    @property
    def goodput_per_s(self) -> float | None:
        """Requests per second that kept the SLO; None without one."""
        return None if self.slo is None or not self.elapsed_s else self.num_kept / self.elapsed_s

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were in the prefix cache."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    def merge(self, other: "Tally") -> None:
        """Count what `other`, of the same SLO, has counted, too."""
        for name in ("ttft", "tpot", "itl", "latency"):
            getattr(self, name).merge(getattr(other, name))
        for name in ("requests", "kept", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions"):
            setattr(self, f"num_{name}", getattr(self, f"num_{name}") + getattr(other, f"num_{name}"))
        self.first_arrival_s = min(self.first_arrival_s, other.first_arrival_s)
        self.last_end_s = max(self.last_end_s, other.last_end_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, seconds and counts; percentiles to within 1 %."""
        latencies = {}
        for name in ("ttft", "tpot", "itl", "latency"):
            histogram: Histogram = getattr(self, name)
            percentiles = {f"p{percent}": histogram.percentile(percent) for percent in (50, 90, 99)}
            latencies[f"{name}_s"] = {"mean": histogram.mean, **percentiles, "max": histogram.max}
        return {
            "num_requests": self.num_requests,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_output_tokens": self.num_output_tokens,
            "num_preemptions": self.num_preemptions,
            "elapsed_s": self.elapsed_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "hit_rate": self.hit_rate,
            "num_kept": None if self.slo is None else self.num_kept,
            "goodput_per_s": self.goodput_per_s,
            **latencies,
        }

    def to_text(self) -> str:
        rate = self.output_tokens_per_s or 0.0
        lines = [
            f"{self.num_requests:,} requests in {self.elapsed_s:,.1f} simulated seconds, {self.num_preemptions:,} "
            f"preemptions; {self.num_prompt_tokens:,} prompt and {self.num_output_tokens:,} output tokens "
            f"({rate:,.1f} output tokens/s)",
            f"{'seconds':<12}" + "".join(f"{name:>12}" for name in ("p50", "p90", "p99", "max", "mean")),
        ]
        rows = (("TTFT", self.ttft), ("ITL", self.itl), ("TPOT", self.tpot), ("end to end", self.latency))
        for name, histogram in rows:
            if histogram.count:
                values = [histogram.percentile(percent) for percent in (50, 90, 99)]
                row = [*values, histogram.max, histogram.mean]
                lines.append(f"{name:<12}" + "".join(f"{value:>12.4g}" for value in row))
        if self.slo is not None and self.num_requests:
            lines.append(
                f"goodput {self.goodput_per_s or 0:.4g} requests/s: {self.num_kept / self.num_requests:.1%} kept "
                f"{self.slo.to_text()}"
            )
        return "\n".join([*lines, f"Percentiles are within {RELATIVE_ERROR:.0%}."])
