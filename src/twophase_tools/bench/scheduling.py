"""`twophase bench scheduling`: what the scheduler itself costs per step, without a model.

Every place is taken by a decoding sequence, and a queue waits behind them. Timed are `schedule` and `update` with all
the block bookkeeping they cause: a slot for each sequence, a new block and a published one every block_size steps.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from twophase.cache.manager import CacheManager
from twophase.core.plan import SampledToken
from twophase.core.request import Request, SamplingParams
from twophase.scheduling.scheduler import Scheduler, SchedulerConfig
from twophase_tools.bench.turns import elapsed_s

BLOCK_SIZE = 16
PROMPT_LEN = 512


@dataclass(frozen=True, slots=True)
class SchedulingTiming:
    """Medians over the steps, in seconds; `step_p99_s` is the 99th percentile of schedule and update together.

    Attributes:
        add_s, abort_s: Of one request, with the whole queue waiting; aborted ones stand all over the queue.
    """

    num_running: int
    num_waiting: int
    num_steps: int
    schedule_s: float
    update_s: float
    step_s: float
    step_p99_s: float
    add_s: float
    abort_s: float


def measure_scheduling(num_running: int = 256, num_waiting: int = 0, num_steps: int = 300) -> SchedulingTiming:
    """Time `num_steps` steps of `num_running` decodes while `num_waiting` requests queue."""
    scheduler = _decoding_scheduler(num_running, num_steps)
    for i in range(num_waiting):
        scheduler.add(_request(f"waiting-{i}", 1))
    schedule_s, update_s = [], []
    for step in range(num_steps):
        start = time.perf_counter()
        plan = scheduler.schedule()
        schedule_s.append(time.perf_counter() - start)
        sampled = {chunk.seq_id: (SampledToken(step),) for chunk in plan.chunks}
        start = time.perf_counter()
        scheduler.update(plan, sampled)
        update_s.append(time.perf_counter() - start)
        assert plan.num_decodes == num_running
    step_s = [a + b for a, b in zip(schedule_s, update_s, strict=True)]
    probes = [_request(f"probe-{i}", 1) for i in range(200)]
    add_s = [elapsed_s(lambda probe=probe: scheduler.add(probe)) for probe in probes]  # type: ignore[misc]
    stride = max(1, num_waiting // len(probes))
    victims = [f"waiting-{i}" for i in range(0, num_waiting, stride)] or [probe.request_id for probe in probes]
    abort_s = [elapsed_s(lambda victim=victim: scheduler.abort(victim)) for victim in victims]  # type: ignore[misc]
    return SchedulingTiming(
        num_running=num_running,
        num_waiting=num_waiting,
        num_steps=num_steps,
        schedule_s=statistics.median(schedule_s),
        update_s=statistics.median(update_s),
        step_s=statistics.median(step_s),
        step_p99_s=statistics.quantiles(step_s, n=100)[-1],
        add_s=statistics.median(add_s),
        abort_s=statistics.median(abort_s),
    )


def _decoding_scheduler(num_running: int, num_steps: int) -> Scheduler:
    """Every place taken by a decode, at lengths spread over a block so that new blocks are not all due at once."""
    max_model_len = PROMPT_LEN + BLOCK_SIZE + num_steps + 8
    num_blocks = (num_running + 1) * (max_model_len // BLOCK_SIZE + 1)
    config = SchedulerConfig(
        max_num_seqs=num_running, max_num_batched_tokens=num_running * max_model_len, max_model_len=max_model_len
    )
    scheduler = Scheduler(config, CacheManager(num_blocks, BLOCK_SIZE))
    for i in range(num_running):
        scheduler.add(_request(f"running-{i}", num_steps + 2, PROMPT_LEN + i % BLOCK_SIZE, first_token=i))
    plan = scheduler.schedule()
    scheduler.update(plan, {chunk.seq_id: (SampledToken(0),) for chunk in plan.chunks})
    return scheduler


def _request(request_id: str, max_tokens: int, prompt_len: int = 4, first_token: int = 0) -> Request:
    prompt = (first_token, *range(1, prompt_len))
    return Request(request_id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def to_text(timings: Sequence[SchedulingTiming]) -> str:
    """A row per queue length, in microseconds."""
    first = timings[0]
    lines = [
        f"{first.num_running} decodes, block size {BLOCK_SIZE}, {first.num_steps} steps; medians in microseconds",
        f"{'waiting':>9} {'schedule':>9} {'update':>9} {'together':>9} {'p99':>9} {'add':>9} {'abort':>9}",
    ]
    for t in timings:
        times_s = (t.schedule_s, t.update_s, t.step_s, t.step_p99_s, t.add_s, t.abort_s)
        lines.append(f"{t.num_waiting:>9,} " + " ".join(f"{time_s * 1e6:>9.1f}" for time_s in times_s))
    return "\n".join(lines)
