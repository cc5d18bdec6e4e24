"""/metrics: the engine's and the server's counters as Prometheus text. Memory stays constant."""

from collections.abc import Iterator
from itertools import pairwise
from typing import final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from twophase.core.plan import StepTrace
from twophase.core.request import FinishReason, RequestOutput
from twophase_features.serving.async_llm import AsyncLLM
from twophase_server import metric_families as families
from twophase_server.metric_families import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@final
class ServerMetrics(Collector):
    """Counts ended requests and steps; takes the other figures from the engine when metrics are read.

    The engine's thread calls `note_*` while an event loop reads the values: the library locks each value.
    """

    def __init__(self, llm: AsyncLLM, model_name: str) -> None:
        prometheus_client.disable_created_metrics()  # one unneeded sample per series
        self._llm = llm
        self._labels = {"model_name": model_name}
        self._registry = CollectorRegistry()
        self._histograms = {each: self._histogram(each) for each in families.METRICS if each.buckets}
        self._prompt_tokens = self._counter(families.PROMPT_TOKENS_TOTAL).labels(**self._labels)
        success = self._counter(families.REQUEST_SUCCESS, "finished_reason")
        self._success = {each: success.labels(**self._labels, finished_reason=each) for each in families.FINISH_REASONS}
        self._refused = self._counter(families.REFUSED, "status", "code")
        self._registry.register(self)
        llm.observe(self)

    def _histogram(self, metric: Metric) -> Histogram:
        made = Histogram(metric.name, metric.help, [*self._labels], registry=self._registry, buckets=metric.buckets)
        return made.labels(**self._labels)

    def _counter(self, metric: Metric, *more_labels: str) -> Counter:
        return Counter(metric.name, metric.help, [*self._labels, *more_labels], registry=self._registry)

    def _observe(self, metric: Metric, value: float | int | None) -> None:
        if value is not None:
            self._histograms[metric].observe(value)

    # -- in the engine's thread

    def note_step(self, step: StepTrace) -> None:
        self._observe(families.ITERATION_TOKENS, sum(num_tokens for *_, num_tokens in step.chunks))

    def note_end(self, output: RequestOutput) -> None:
        times = output.metrics
        self._observe(families.TIME_TO_FIRST_TOKEN, times.ttft_s)
        self._observe(families.TIME_PER_OUTPUT_TOKEN, times.tpot_s)
        self._observe(families.E2E_LATENCY, times.latency_s)
        for before_s, after_s in pairwise(times.token_times_s):
            self._observe(families.INTER_TOKEN_LATENCY, after_s - before_s)
        if times.first_scheduled_s is not None:
            self._observe(families.QUEUE_TIME, times.first_scheduled_s - times.arrival_s)
            self._prompt_tokens.inc(times.num_prompt_tokens)
        self._observe(families.PROMPT_TOKENS, times.num_prompt_tokens)
        self._observe(families.GENERATION_TOKENS, sum(len(completion.token_ids) for completion in output.outputs))
        self._success[_reason(output)].inc()

    # -- in an event loop

    def note_refusal(self, status: int, code: str | None) -> None:
        self._refused.labels(**self._labels, status=str(status), code=code or "").inc()

    def to_text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The engine's own counters as of the end of its latest step, and the current queue."""
        stats = self._llm.stats()
        cache = stats.cache
        for metric, value in (
            (families.GENERATION_TOKENS_TOTAL, stats.num_output_tokens),
            (families.PREEMPTIONS, stats.num_preemptions),
            (families.PREFIX_CACHE_QUERIES, cache.num_queried_tokens),
            (families.PREFIX_CACHE_HITS, cache.num_hit_tokens),
            (families.EVICTIONS, cache.num_evicted),
            (families.WAITING, self._llm.num_waiting),
            (families.RUNNING, stats.num_running),
            (families.KV_CACHE_USAGE, stats.kv_cache_usage),
            (families.KV_CACHE_USAGE_PEAK, stats.kv_cache_usage_peak),
            (families.FRAGMENTATION, cache.internal_fragmentation),
            (families.QUEUE_AGE, self._llm.queue_age_s or 0.0),
            (families.ENGINE_UP, float(self._llm.is_alive)),
        ):
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(metric.name, metric.help, labels=[*self._labels])
            family.add_metric([*self._labels.values()], value)
            yield family
        blocks = GaugeMetricFamily(families.BLOCKS.name, families.BLOCKS.help, labels=[*self._labels, "state"])
        for state, count in (("in_use", cache.num_in_use), ("cached", cache.num_cached), ("free", cache.num_free)):
            blocks.add_metric([*self._labels.values(), state], count)
        yield blocks


def _reason(output: RequestOutput) -> FinishReason:
    """The whole request's finish reason: 'error' or 'abort' if a completion ended so, else the first completion's."""
    reasons = [completion.finish_reason or "abort" for completion in output.outputs]
    return next((bad for bad in ("error", "abort") if bad in reasons), reasons[0])
