"""The summary of a run: latencies, throughput, goodput, and what the engine did."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from twophase.core.plan import StepTrace
from twophase_tools.load.latency import Goodput, Latencies, Percentiles, rate
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.slo import Slo
from twophase_tools.load.steps import StepSummary


@dataclass(frozen=True, slots=True)
class ServingReport:
    """A run in numbers. None says 'there is nothing to measure', never 0.

    Attributes:
        window_s: The time that rates are taken over.
        num_completed, num_failed, num_aborted, num_unfinished: Requests by how they ended; together `num_requests`.
        num_prompt_tokens, num_cached_tokens: Of the requests that were scheduled; the latter were prefix-cache hits.
        num_output_tokens: Of all requests, those of aborted ones included: the engine did compute them.
        offered_requests_per_s: How fast they came: arrivals after the first over the time they took; None when all
            came at once.
        requests_per_s: Completed ones; `output_tokens_per_s` counts every output token.
    """

    num_requests: int
    num_completed: int
    num_failed: int
    num_aborted: int
    num_unfinished: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int
    window_s: float
    offered_requests_per_s: float | None
    requests_per_s: float | None
    output_tokens_per_s: float | None
    latencies: Latencies
    slo: Slo | None
    goodput: Goodput | None
    steps: StepSummary | None

    @classmethod
    def of(
        cls,
        records: Sequence[RequestRecord],
        steps: Sequence[StepTrace] = (),
        *,
        slo: Slo | None = None,
        window: tuple[float | int, float | int] | None = None,
    ) -> "ServingReport":
        """Summarise.

        Args:
            records: What became of each request.
            steps: The engine's trace of the same time, on the same clock, if there is one.
            slo: Was promised to every request.
            window: [start, end] of the measurement; None: from the first arrival to the last thing that happened.

        Raises:
            ValueError: The window ends before it starts.
        """
        start_s, end_s = window or window_of(records)
        if end_s < start_s:
            raise ValueError(f"a window must not end before it starts, got [{start_s}, {end_s}] s.")
        reasons = [record.finish_reason for record in records]
        served = [record for record in records if record.first_scheduled_s is not None]
        num_completed = sum(record.is_completed for record in records)
        num_output_tokens = sum(record.num_output_tokens for record in records)
        return cls(
            num_requests=len(records),
            num_completed=num_completed,
            num_failed=reasons.count("error"),
            num_aborted=reasons.count("abort"),
            num_unfinished=reasons.count(None),
            num_prompt_tokens=sum(record.num_prompt_tokens for record in served),
            num_cached_tokens=sum(record.num_cached_tokens for record in served),
            num_output_tokens=num_output_tokens,
            num_preemptions=sum(record.num_preemptions for record in records),
            window_s=float(end_s - start_s),
            offered_requests_per_s=_offered_rate(records),
            requests_per_s=rate(num_completed, end_s - start_s),
            output_tokens_per_s=rate(num_output_tokens, end_s - start_s),
            latencies=Latencies.of(records),
            slo=slo,
            goodput=Goodput.of(records, slo, end_s - start_s),
            steps=StepSummary.of(steps),
        )

    @property
    def cache_hit_rate(self) -> float | None:
        """Share of the scheduled prompt tokens that were in the prefix cache."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; seconds, tokens, blocks and shares, as the names say."""
        return asdict(self) | {"cache_hit_rate": self.cache_hit_rate}

    def to_text(self) -> str:
        return "\n".join([*self._count_lines(), "", *self._latency_lines(), *self._step_lines()])

    def _count_lines(self) -> list[str]:
        lines = [
            f"requests     {self.num_completed:,} of {self.num_requests:,} completed in {self.window_s:.2f} s "
            f"({self.num_failed:,} failed, {self.num_aborted:,} aborted, {self.num_unfinished:,} unfinished)",
            f"load         {_per_s(self.offered_requests_per_s, 'requests', 'all at once')} offered, "
            f"{_per_s(self.requests_per_s, 'requests')} completed, "
            f"{_per_s(self.output_tokens_per_s, 'output tokens')}",
            f"tokens       {self.num_prompt_tokens:,} prompt ({_share(self.cache_hit_rate)} from the prefix cache), "
            f"{self.num_output_tokens:,} output",
        ]
        if self.goodput is not None and self.slo is not None:
            lines.append(
                f"goodput      {_per_s(self.goodput.requests_per_s, 'requests')} within {self.slo.to_text()}: "
                f"{self.goodput.num_met:,} of {self.goodput.num_promised:,} ({_share(self.goodput.attainment)})"
            )
        return lines

    def _latency_lines(self) -> list[str]:
        rows = (
            ("in queue", self.latencies.queue),
            ("TTFT", self.latencies.ttft),
            ("ITL", self.latencies.itl),
            ("TPOT", self.latencies.tpot),
            ("end to end", self.latencies.latency),
        )
        head = f"{'seconds':<12}" + "".join(f"{name:>10}" for name in ("p50", "p90", "p95", "p99", "max", "mean"))
        return [f"{head}{'values':>10}", *(_row(name, percentiles) for name, percentiles in rows)]

    def _step_lines(self) -> list[str]:
        steps = self.steps
        if steps is None:
            return []
        swapped = ""
        if steps.num_blocks_offloaded or steps.num_blocks_loaded:
            swapped = f"; {steps.num_blocks_offloaded:,} swapped out, {steps.num_blocks_loaded:,} back in"
        return [
            "",
            f"engine       {steps.num_steps:,} steps, busy {steps.busy_s:.2f} s, of which scheduling and bookkeeping "
            f"{steps.overhead_s:.3g} s",
            f"computed     {steps.num_prefill_tokens:,} prefill and {steps.num_decode_tokens:,} decode tokens, "
            f"{steps.num_recomputed_tokens:,} of them again after {steps.num_preemptions:,} preemptions",
            f"blocks       {steps.blocks_in_use_mean:.1f} of {steps.num_blocks:,} in use on average, "
            f"{steps.blocks_in_use_max:,} at most ({_share(steps.blocks_in_use_mean / steps.num_blocks)} and "
            f"{_share(steps.blocks_in_use_max / steps.num_blocks)}){swapped}",
        ]


def window_of(records: Sequence[RequestRecord]) -> tuple[float | int, float | int]:
    """From the first arrival to the last thing that is known to have happened; (0, 0) without records."""
    if not records:
        return (0.0, 0.0)
    ends = [record.arrival_s for record in records]
    ends += [record.finished_s for record in records if record.finished_s is not None]
    ends += [record.token_times_s[-1] for record in records if record.token_times_s]
    return (min(record.arrival_s for record in records), max(ends))


def _offered_rate(records: Sequence[RequestRecord]) -> float | None:
    arrivals = [record.arrival_s for record in records]
    return rate(len(arrivals) - 1, max(arrivals) - min(arrivals)) if arrivals else None


def _row(name: str, p: Percentiles | None) -> str:
    if p is None:
        return f"{name:<12}{'none':>10}"
    values = (p.p50, p.p90, p.p95, p.p99, p.max, p.mean)
    return f"{name:<12}" + "".join(f"{value:>10.4f}" for value in values) + f"{p.count:>10,}"


def _per_s(value: float | None, what: str, instead: str = "no time passed") -> str:
    return instead if value is None else f"{value:,.2f} {what}/s"


def _share(value: float | None) -> str:
    return "none asked" if value is None else f"{100 * value:.1f} %"
