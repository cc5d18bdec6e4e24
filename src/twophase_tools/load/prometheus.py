"""A run as Prometheus text: what a server would show at its /metrics endpoint at the end of it.

Format: Prometheus text exposition 0.0.4. The metrics are those of the server.
"""

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from twophase.core.plan import StepTrace
from twophase_server import metric_families as families
from twophase_server.metric_families import Metric
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.steps import num_tokens

Labels = Mapping[str, str]


def to_prometheus(records: Sequence[RequestRecord], steps: Sequence[StepTrace] = (), model_name: str = "") -> str:
    """The text, every sample labelled with `model_name`."""
    labels = {"model_name": model_name}
    lines: list[str] = []
    for metric, values in _histograms(records, steps):
        lines += _family(metric, _histogram_samples(metric, values, labels))
    for metric, value in [*_counters(records), *_gauges(steps)]:
        lines += _family(metric, [(metric.name, labels, value)])
    reasons = [record.finish_reason for record in records]
    by_reason = [
        (families.REQUEST_SUCCESS.name, labels | {"finished_reason": reason}, reasons.count(reason))
        for reason in families.FINISH_REASONS
    ]
    return "\n".join([*lines, *_family(families.REQUEST_SUCCESS, by_reason)]) + "\n"


def _histograms(
    records: Sequence[RequestRecord], steps: Sequence[StepTrace]
) -> Iterator[tuple[Metric, Iterable[float | int | None]]]:
    ended = [record for record in records if record.finish_reason is not None]
    yield families.TIME_TO_FIRST_TOKEN, (record.ttft_s for record in records)
    yield families.INTER_TOKEN_LATENCY, (gap for record in records for gap in record.itls_s)
    yield families.TIME_PER_OUTPUT_TOKEN, (record.tpot_s for record in records)
    yield families.E2E_LATENCY, (record.latency_s for record in ended)
    yield families.QUEUE_TIME, (record.queue_s for record in records)
    yield families.PROMPT_TOKENS, (record.num_prompt_tokens for record in ended)
    yield families.GENERATION_TOKENS, (record.num_output_tokens for record in ended)
    yield families.ITERATION_TOKENS, map(num_tokens, steps)


def _counters(records: Sequence[RequestRecord]) -> Iterator[tuple[Metric, int]]:
    served = [record for record in records if record.first_scheduled_s is not None]
    num_prompt_tokens = sum(record.num_prompt_tokens for record in served)
    yield families.PROMPT_TOKENS_TOTAL, num_prompt_tokens
    yield families.GENERATION_TOKENS_TOTAL, sum(record.num_output_tokens for record in records)
    yield families.PREEMPTIONS, sum(record.num_preemptions for record in records)
    yield families.PREFIX_CACHE_QUERIES, num_prompt_tokens
    yield families.PREFIX_CACHE_HITS, sum(record.num_cached_tokens for record in served)


def _gauges(steps: Sequence[StepTrace]) -> Iterator[tuple[Metric, float | int]]:
    """After the last step; none without steps, for then nobody knows."""
    if not steps:
        return
    last = steps[-1]
    yield families.WAITING, last.num_waiting
    yield families.RUNNING, last.num_running
    yield families.KV_CACHE_USAGE, last.kv_cache_usage
    yield families.KV_CACHE_USAGE_PEAK, max(step.kv_cache_usage for step in steps)
    yield families.QUEUE_AGE, last.queue_age_s or 0.0


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
