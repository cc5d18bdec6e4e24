"""A run as Prometheus text: what a server would show at its /metrics endpoint at the end of it.

Format: Prometheus text exposition 0.0.4. Names follow vLLM's, with 'twophase:' for 'vllm:'.
"""

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from twophase.core.outputs import StepTrace
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.steps import num_tokens

# Three buckets per decade, from a millisecond to a quarter of an hour; and powers of two for counts.
SECONDS = tuple(mantissa * 10.0**exponent for exponent in range(-3, 3) for mantissa in (1, 2.5, 5))
TOKENS = tuple(float(2**exponent) for exponent in range(18))

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family without its samples.

    Attributes:
        kind: 'counter', 'gauge' or 'histogram'. A counter's name ends in _total.
        buckets: Upper bounds of a histogram's buckets, rising; +Inf is added.
    """

    name: str
    kind: str
    help: str
    buckets: tuple[float, ...] = field(default=())


def to_prometheus(records: Sequence[RequestRecord], steps: Sequence[StepTrace] = (), model_name: str = "") -> str:
    """The text, every sample labelled with `model_name`."""
    labels = {"model_name": model_name}
    lines: list[str] = []
    for metric, values in _histograms(records, steps):
        lines += _family(metric, _histogram_samples(metric, values, labels))
    for metric, value in [*_counters(records), *_gauges(steps)]:
        lines += _family(metric, [(metric.name, labels, value)])
    success = Metric("twophase:request_success_total", "counter", "Requests that ended, by reason.")
    reasons = [record.finish_reason for record in records]
    by_reason = [
        (success.name, labels | {"finished_reason": reason}, reasons.count(reason))
        for reason in ("stop", "length", "abort", "error")
    ]
    return "\n".join([*lines, *_family(success, by_reason)]) + "\n"


def _histograms(
    records: Sequence[RequestRecord], steps: Sequence[StepTrace]
) -> Iterator[tuple[Metric, Iterable[float | int | None]]]:
    def seconds(name: str, text: str) -> Metric:
        return Metric(f"twophase:{name}_seconds", "histogram", text, SECONDS)

    def tokens(name: str, text: str) -> Metric:
        return Metric(f"twophase:{name}", "histogram", text, TOKENS)

    ended = [record for record in records if record.finish_reason is not None]
    yield seconds("time_to_first_token", "Time to first token, from arrival."), (r.ttft_s for r in records)
    yield (
        seconds("inter_token_latency", "Time between two tokens of a request."),
        (gap for record in records for gap in record.itls_s),
    )
    yield (
        seconds("request_time_per_output_token", "Mean time per output token after a request's first."),
        (record.tpot_s for record in records),
    )
    yield seconds("e2e_request_latency", "Time from arrival to the end of a request."), (r.latency_s for r in ended)
    yield seconds("request_queue_time", "Time from arrival to the first scheduling."), (r.queue_s for r in records)
    yield tokens("request_prompt_tokens", "Prompt tokens of a request."), (r.num_prompt_tokens for r in ended)
    yield tokens("request_generation_tokens", "Tokens generated for a request."), (r.num_output_tokens for r in ended)
    # vLLM calls this histogram iteration_tokens_total, an ending that OpenMetrics keeps for counters.
    yield tokens("iteration_tokens", "Tokens computed in a step of the engine."), map(num_tokens, steps)


def _counters(records: Sequence[RequestRecord]) -> Iterator[tuple[Metric, int]]:
    def counter(name: str, text: str) -> Metric:
        return Metric(f"twophase:{name}_total", "counter", text)

    served = [record for record in records if record.first_scheduled_s is not None]
    num_prompt_tokens = sum(record.num_prompt_tokens for record in served)
    yield counter("prompt_tokens", "Prompt tokens of scheduled requests."), num_prompt_tokens
    yield counter("generation_tokens", "Tokens generated."), sum(record.num_output_tokens for record in records)
    yield counter("num_preemptions", "Times a sequence lost its blocks."), sum(r.num_preemptions for r in records)
    yield counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."), num_prompt_tokens
    yield counter("prefix_cache_hits", "Prompt tokens found there."), sum(r.num_cached_tokens for r in served)


def _gauges(steps: Sequence[StepTrace]) -> Iterator[tuple[Metric, float | int]]:
    """After the last step; none without steps, for then nobody knows."""
    if not steps:
        return
    last = steps[-1]
    yield Metric("twophase:num_requests_waiting", "gauge", "Sequences waiting for a place or blocks."), last.num_waiting
    yield Metric("twophase:num_requests_running", "gauge", "Sequences that hold blocks."), last.num_running
    usage = Metric("twophase:kv_cache_usage_perc", "gauge", "Share of the KV blocks in use, 1 is all.")
    yield usage, last.kv_cache_usage
    # vLLM has neither of these.
    peak = Metric("twophase:kv_cache_usage_perc_peak", "gauge", "The largest share of the KV blocks after any step.")
    yield peak, max(step.kv_cache_usage for step in steps)
    oldest = Metric("twophase:queue_age_seconds", "gauge", "How long the oldest request in the queue has waited.")
    yield oldest, last.queue_age_s or 0.0


Sample = tuple[str, Labels, float | int]


def _histogram_samples(metric: Metric, values: Iterable[float | int | None], labels: Labels) -> Iterator[Sample]:
    """Cumulative buckets (value <= bound), then their sum and count."""
    there = sorted(value for value in values if value is not None)
    for bound in (*metric.buckets, math.inf):
        yield f"{metric.name}_bucket", {**labels, "le": _number(bound)}, bisect.bisect_right(there, bound)
    yield f"{metric.name}_sum", labels, math.fsum(there)
    yield f"{metric.name}_count", labels, len(there)


def _family(metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {metric.name} {_escape(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for name, labels, value in samples:
        pairs = ",".join(f'{key}="{_escape(text, quote=True)}"' for key, text in labels.items())
        yield f"{name}{{{pairs}}} {_number(value)}"


def _number(value: float | int) -> str:
    if value == math.inf:
        return "+Inf"
    return repr(float(value)) if isinstance(value, float) else str(value)


def _escape(text: str, quote: bool = False) -> str:
    """Backslashes and line feeds, and in label values double quotes."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text
