"""Five incidents and some ordinary hours, as a monitoring system sees them: samples scraped every five seconds.

Each is a run of the service (service.py) in virtual time. The quality probes in the samples are drawn at random, at
about the rates that SmolLM2 has (probes.py).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from twophase_features.policies.whole_prompts import PrefillFirstPolicy
from twophase_labs.operations.service import Run, Setting, Traffic, serve
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.steps import end_of

EVERY_S = 5.0
START_S = 40.0  # of the window that is looked at; the service has filled by then
PROBES_PER_SAMPLE = 8  # of each length
FAST_LINK, SLOW_LINK = 3.1e9, 0.31e9  # bytes per second: 25 and 2.5 Gbit/s

Sample = dict[str, float | int | None]
CAUSES = ("healthy", "kv", "batching", "retrieval", "format", "transfer")


@dataclass(frozen=True)
class Hour:
    """What was the matter, and how the service was run and used meanwhile.

    Attributes:
        short, long: Share of the needles that the model finds in short and in long texts.
    """

    cause: str
    setting: Setting
    traffic: Traffic
    short: float = 1.0
    long: float = 0.97

    def window(self, seed: int) -> list[Sample]:
        return list(_window(self, seed))

    def run(self, seed: int) -> Run:
        return _run(self.setting, self.traffic, seed)


@lru_cache(maxsize=64)
def _run(setting: Setting, traffic: Traffic, seed: int) -> Run:
    return serve(setting, traffic, seed)


@lru_cache(maxsize=64)
def _window(hour: Hour, seed: int) -> tuple[Sample, ...]:
    return tuple(scrape(hour.run(seed), hour.short, hour.long, seed))


APART = Setting(link_bytes_per_s=FAST_LINK)
USUAL = Traffic()
HEALTHY = Hour("healthy", Setting(), USUAL)
HEALTHY_APART = Hour("healthy", APART, USUAL)
KV = Hour("kv", Setting(), Traffic(rate_per_s=1.7, output_scale=6.0, invalid=0.0))
BATCHING = Hour("batching", Setting(policy=PrefillFirstPolicy()), USUAL)
RETRIEVAL = Hour("retrieval", Setting(), USUAL, long=0.6)
FORMAT = Hour("format", Setting(), Traffic(invalid=0.5))
TRANSFER = Hour("transfer", Setting(link_bytes_per_s=SLOW_LINK, link_jitter=8.0), USUAL)


def scrape(run: Run, short: float, long: float, seed: int) -> list[Sample]:
    """The samples of the window. What ends in `_total` counts from the start of the service, all else is of the last
    five seconds or of this moment; None: there was nothing to measure."""
    times_s = np.arange(START_S, run.length_s + EVERY_S / 2, EVERY_S)
    draw = random.Random(f"{seed} probes")
    gaps = [(b, b - a) for record in run.records for a, b in pairwise(record.token_times_s)]
    firsts = [(record.token_times_s[0], record.ttft_s) for record in run.records]
    preempted = sorted(end_of(step) for step in run.steps for _ in step.preempted)
    tokens = sorted(time_s for record in run.records for time_s in record.token_times_s)
    prompts = [(end_of(step), _prompt_tokens(step.chunks, step.num_decodes)) for step in run.prefill_steps]
    ends = [end_of(step) for step in run.steps]
    found = {"short": 0, "long": 0}
    samples: list[Sample] = []
    for number, time_s in enumerate(map(float, times_s)):
        for length, share in (("short", short), ("long", long)):
            found[length] += sum(draw.random() < share for _ in range(PROBES_PER_SAMPLE))
        step = run.steps[max(0, int(np.searchsorted(ends, time_s, side="right")) - 1)]
        ended = [record for record in run.records if _end_s(record) <= time_s]
        json = [record for record in ended if run.kind(record) == "json"]
        asked = PROBES_PER_SAMPLE * (number + 1)
        samples.append(
            {
                "time_s": time_s,
                "kv_usage": step.kv_cache_usage,
                "num_running": step.num_running,
                "num_waiting": step.num_waiting,
                "num_in_transfer": _in_transfer(run, time_s),
                "preemptions_total": int(np.searchsorted(preempted, time_s, side="right")),
                "output_tokens_total": int(np.searchsorted(tokens, time_s, side="right")),
                "answers_total": len(ended),
                "answer_tokens_total": sum(len(record.token_times_s) for record in ended),
                "json_total": len(json),
                "json_invalid_total": sum(record.request_id in run.invalid for record in json),
                "short_needles_total": asked,
                "short_needles_found_total": found["short"],
                "long_needles_total": asked,
                "long_needles_found_total": found["long"],
                "itl_p99_s": _p99(gaps, time_s),
                "ttft_p99_s": _p99(firsts, time_s),
                "largest_prefill_tokens": max((n for at_s, n in prompts if _is_recent(at_s, time_s)), default=0),
                "transfer_p99_s": _p99([(each.end_s, each.seconds) for each in run.transfers], time_s),
            }
        )
    return samples


def _prompt_tokens(chunks: Sequence[tuple[str, int, int, int]], num_decodes: int) -> int:
    return sum(count for _, _, _, count in chunks[num_decodes:])


def _is_recent(at_s: float, time_s: float) -> bool:
    return time_s - EVERY_S < at_s <= time_s


def _p99(values: Sequence[tuple[float, float | int | None]], time_s: float) -> float | None:
    recent = [value for at_s, value in values if value is not None and _is_recent(at_s, time_s)]
    return float(np.percentile(recent, 99)) if recent else None


def _in_transfer(run: Run, time_s: float) -> int:
    return sum(each.end_s - each.seconds <= time_s < each.end_s for each in run.transfers)


def _end_s(record: RequestRecord) -> float:
    assert record.finished_s is not None
    return float(record.finished_s)


@dataclass(frozen=True)
class Outcome:
    """What the clients had of an hour.

    Attributes:
        task_p99_s: From a client's first attempt to the end of its last one.
        tokens_per_task: Computed, prompts and attempts that failed included.
        cut: Share of the answers that a limit cut.
    """

    ttft_p99_s: float
    itl_p99_s: float
    task_p99_s: float
    tokens_per_task: float
    num_preemptions: int
    cut: float

    @property
    def line(self) -> str:
        return (
            f"TTFT p99 {self.ttft_p99_s:6.2f} s, ITL p99 {1e3 * self.itl_p99_s:4.0f} ms, JSON task p99 "
            f"{self.task_p99_s:5.1f} s, {self.tokens_per_task:5,.0f} tokens per task, {self.num_preemptions:2} "
            f"preemptions, {self.cut:3.0%} of the answers cut"
        )


def outcome(hour: Hour, seed: int) -> Outcome:
    run = hour.run(seed)
    first_s: dict[str, float] = {}
    last_s: dict[str, float] = {}
    for record in run.records:
        asked = run.asked[record.request_id]
        if asked.kind == "json":
            task = asked.task or record.request_id
            if asked.attempt == 1:
                first_s[task] = float(record.arrival_s)
            last_s[task] = max(last_s.get(task, 0.0), _end_s(record))
    tasks_s = [last_s[task] - first_s[task] for task in first_s]
    asked_for = [run.asked[record.request_id] for record in run.records]
    num_tasks = sum(asked.attempt == 1 for asked in asked_for)
    num_tokens = sum(record.num_prompt_tokens + record.num_output_tokens for record in run.records)
    return Outcome(
        float(np.percentile([float(record.ttft_s or 0) for record in run.records], 99)),
        float(np.percentile([gap for record in run.records for gap in record.itls_s], 99)),
        float(np.percentile(tasks_s, 99)),
        num_tokens / num_tasks,
        sum(record.num_preemptions for record in run.records),
        sum(asked.num_wanted > asked.max_tokens for asked in asked_for) / len(asked_for),
    )


def over(window: Sequence[Mapping[str, float | int | None]], name: str) -> float:
    """How far a counter rose over the window."""
    return float(window[-1][name] or 0) - float(window[0][name] or 0)


def highest(window: Sequence[Mapping[str, float | int | None]], name: str) -> float | None:
    values = [sample[name] for sample in window if sample[name] is not None]
    return None if not values else float(max(values))  # type: ignore[type-var, arg-type]
