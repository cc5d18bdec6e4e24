"""Fleets of simulated H100s with Llama-3-8B, and the traffic that this lab sends them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, final

from twophase.core.request import Request
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.latency import percentile
from twophase_tools.load.lengths import LogNormalLengths
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.report import ServingReport
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import RandomWorkload, SharedPrefix
from twophase_tools.simulate.autoscale import FleetState, Scaler, ScalingPolicy
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.fleet import Fleet, run_fleet
from twophase_tools.simulate.fleet_report import FleetReport
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.model_shapes import MODELS
from twophase_tools.simulate.pools import Link, run_pools
from twophase_tools.simulate.recorder import Recorder
from twophase_tools.simulate.routers import LeastTokens, PrefixAware, RoundRobin, Router
from twophase_tools.simulate.simulator import Replica
from twophase_tools.simulate.step_load import StepLoad, num_pairs
from twophase_tools.simulate.traffic import requests_of

BLOCK_SIZE = 16
WEIGHT = 4.0  # of a token of prefill, in tokens of load
SHAPE = MODELS["llama-3-8b"]
H100 = RooflineCostModel(HARDWARE["h100"], SHAPE)
FOUR_H100 = RooflineCostModel(HARDWARE["h100"], MODELS["llama-3-70b"], 4)  # an engine of 70B on four GPUs


@dataclass(frozen=True)
class Traffic:
    """Requests that come at random, and the latencies that each should stay below."""

    name: str
    num_requests: int
    rate_per_s: float
    prompts: LogNormalLengths
    outputs: LogNormalLengths
    slo: Slo
    prefix: SharedPrefix | None = None
    seed: int = 1

    @property
    def requests(self) -> tuple[Request, ...]:
        arrivals = Poisson(self.rate_per_s)
        workload = RandomWorkload(
            self.name, self.num_requests, arrivals, self.prompts, self.outputs, self.prefix, self.seed
        )
        return tuple(requests_of(workload))


# 96 customers with a long instruction of 6,000 tokens each; questions and answers are short.
ASSISTANTS = Traffic(
    "assistants", 400, 32.0, LogNormalLengths(median=200, sigma=0.8, low=20, high=2000),
    LogNormalLengths(median=120, sigma=0.5, low=8, high=600), Slo(ttft_s=0.5, tpot_s=0.030), SharedPrefix(96, 6000),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of the requests."""

    name: str
    records: Sequence[RequestRecord]
    total: ServingReport
    busy: float
    balance: float

    @property
    def within(self) -> float:
        """Share of the requests within the SLO."""
        return _within(self.total)

    @property
    def hit_rate(self) -> float:
        return self.total.cache_hit_rate or 0.0

    def ttft_s(self, percent: int) -> float:
        return _at(percent, [record.ttft_s for record in self.records])

    @property
    def line(self) -> str:
        hits = f", hit rate {self.hit_rate:4.0%}" if self.hit_rate else ""  # none where nothing is cached
        tpot_ms = 1e3 * _at(50, [record.tpot_s for record in self.records])
        return (
            f"{self.name:22} {self.within:4.0%} within the SLO{hits}; TTFT p50 {self.ttft_s(50):5.2f} s, p99 "
            f"{self.ttft_s(99):5.2f} s; TPOT p50 {tpot_ms:3.0f} ms; engines busy {self.busy:3.0%}"
        )


def _within(total: ServingReport) -> float:
    return total.goodput.attainment if total.goodput is not None else 0.0


def _at(percent: int, times_s: Sequence[float | int | None]) -> float:
    """A percentile of the times that there are."""
    return percentile([time_s for time_s in times_s if time_s is not None], percent) or 0.0


def replica(max_tokens: int = 2048, cost_model: RooflineCostModel = H100, *, is_caching: bool = False) -> Replica:
    """An engine whose steps have so many tokens at most."""
    limits = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 32768,
        "num_blocks": cost_model.num_blocks(),
        "block_size": BLOCK_SIZE,
    }
    scheduler = make_scheduler(limits, ChunkedPrefillPolicy(max_tokens), enable_prefix_caching=is_caching)
    return Replica(scheduler, cost_model, Recorder(keeps_steps=False))


def serve(traffic: Traffic, router: Router, num_engines: int = 4, name: str = "", max_tokens: int = 2048) -> Outcome:
    """Simulate a fleet: the same requests at the same times, whatever the router."""
    replicas = [replica(max_tokens, is_caching=traffic.prefix is not None) for _ in range(num_engines)]
    report = FleetReport(run_fleet(traffic.requests, replicas, router), traffic.slo)
    return Outcome(name or type(router).__name__, report.records, report.total, report.busy_share, report.balance or 0)


def two_rules() -> tuple[Outcome, Outcome]:
    """The assistants by round robin, and by another rule: the engine's own one for prefixes, not named yet."""
    other = PrefixAware(weight=WEIGHT)
    return serve(ASSISTANTS, RoundRobin(), name="each engine in turn"), serve(ASSISTANTS, other, name="another rule")


@final
class Own(Router):
    """A learner's router in the simulator: it sees the prompt, and the tokens of each engine's unfinished requests."""

    def __init__(self, choose: Callable[[Sequence[int], list[int]], int]) -> None:
        self._choose = choose

    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        loads = [each.num_outstanding_tokens(request.arrival_s) for each in replicas]
        return int(self._choose(request.prompt_token_ids, loads))


# -- prefill and decode in pools


DOCUMENTS = Traffic(
    "documents", 240, 36.0, LogNormalLengths(median=4000, sigma=0.6, low=200, high=14000),
    LogNormalLengths(median=120, sigma=0.5, low=8, high=600), Slo(ttft_s=1.0, tpot_s=0.012), seed=5,
)  # fmt: skip
# Mostly short prompts, and one in a dozen of 8,000 to 24,000 tokens.
MANY_LENGTHS = Traffic(
    "many lengths", 400, 40.0, LogNormalLengths(median=700, sigma=1.6, low=50, high=24000),
    LogNormalLengths(median=100, sigma=0.5, low=8, high=400), Slo(ttft_s=0.5, tpot_s=0.050), seed=9,
)  # fmt: skip
NUM_ENGINES = 8
LINK_BYTES_PER_S = 50e9  # 400 Gbit/s from engine to engine


def in_pools(traffic: Traffic, num_prefill: int, num_decode: int) -> Outcome:
    """The first so many engines compute prompts, the others decode."""
    prefill, decode = (Fleet([replica(8192) for _ in range(n)], LeastTokens()) for n in (num_prefill, num_decode))
    run_pools(traffic.requests, prefill, decode, Link(LINK_BYTES_PER_S, SHAPE.kv_bytes_per_token))
    report = FleetReport(decode, traffic.slo)
    engines = [life.replica for fleet in (prefill, decode) for life in fleet.lives]
    busy = sum(each.busy_s(report.end_s) for each in engines) / (len(engines) * report.end_s)
    name = f"{num_prefill} prefill, {num_decode} decode"
    return Outcome(name, report.records, report.total, busy, report.balance or 0)


def costs_line() -> str:
    """What the two phases cost an engine, by roofline."""
    lengths = [len(request.prompt_token_ids) for request in DOCUMENTS.requests]
    mean = sum(lengths) / len(lengths)
    prefill_s = sum(float(H100.run_s(StepLoad(n, 1, 1, 0, num_pairs(0, n), n))) for n in lengths) / len(lengths)
    decode_s = float(H100.run_s(StepLoad(40, 40, 40, int(40 * mean), 0, 0)))
    return (
        f"{mean:,.0f} tokens a prompt: {1e3 * prefill_s:.0f} ms to compute one alone; a decode step of 40 sequences: "
        f"{1e3 * decode_s:.1f} ms"
    )


@cache
def splits() -> dict[int, Outcome]:
    """For each number of prefill engines of eight, what becomes of the documents."""
    return {n: in_pools(DOCUMENTS, n, NUM_ENGINES - n) for n in range(3, NUM_ENGINES - 1)}


def best_split() -> int:
    """Prefill engines of the split with the most requests within the SLO."""
    found = splits()
    return max(found, key=lambda n: found[n].within)


# -- engines that come and go


BURST_SLO = Slo(ttft_s=2.0, tpot_s=0.250)


@dataclass(frozen=True)
class Burst:
    """Quiet, a rise, quiet again: (seconds, requests per second)."""

    parts: tuple[tuple[float, float], ...] = ((40.0, 1.5), (20.0, 3.0), (20.0, 5.0), (50.0, 7.0), (50.0, 1.5))
    slo: Slo = BURST_SLO
    seed: int = 3

    def rate_at(self, time_s: float) -> float:
        """Requests per second at this time; none when the last part is over."""
        for length_s, rate in self.parts:
            if time_s < length_s:
                return rate
            time_s -= length_s
        return 0.0

    @property
    def requests(self) -> tuple[Request, ...]:
        found: list[Request] = []
        start_s = 0.0
        for number, (length_s, rate) in enumerate(self.parts):
            workload = RandomWorkload(
                "burst", int(rate * length_s), Poisson(rate),
                LogNormalLengths(median=6000, sigma=0.5, low=200, high=16000),
                LogNormalLengths(median=100, sigma=0.5, low=8, high=400), seed=self.seed + number,
            )  # fmt: skip
            for request in requests_of(workload):
                if request.arrival_s < length_s:
                    found.append(_later(request, start_s, len(found)))
            start_s += length_s
        return tuple(found)


def _later(request: Request, start_s: float, number: int) -> Request:
    return replace(request, request_id=f"r{number}", arrival_s=request.arrival_s + start_s)


@final
class PerEngine(ScalingPolicy):
    """As many engines as carry `target` unfinished requests each; within 10 % of it, the present number."""

    def __init__(self, target: int, tolerance: float = 0.1) -> None:
        self._target, self._tolerance = target, tolerance

    def num_wanted(self, state: FleetState) -> int:
        num_engines = state.num_ready + state.num_starting
        ratio = state.num_outstanding / (num_engines * self._target)
        if abs(ratio - 1) <= self._tolerance:
            return num_engines
        return math.ceil(state.num_outstanding / self._target)


@dataclass(frozen=True)
class Scaled:
    """A burst, and the engines that served it.

    Attributes:
        times_s: Of the scaler's looks. The rest is of these times: `ready` and `paid` count engines as they are after
            the look, `rate_per_s` is that of the traffic, and `queue_age_s` the longest wait of a request in a queue.
    """

    name: str
    total: ServingReport
    engine_s: float
    times_s: tuple[float, ...]
    ready: tuple[int, ...]
    paid: tuple[int, ...]
    rate_per_s: tuple[float, ...]
    queue_age_s: tuple[float, ...]

    @property
    def line(self) -> str:
        ttft_s = 0.0 if self.total.latencies.ttft is None else self.total.latencies.ttft.p99
        return (
            f"{self.name:26} {_within(self.total):4.0%} within the SLO, TTFT p99 {ttft_s:6.2f} s; "
            f"{self.engine_s:5,.0f} engine-seconds"
        )


def scaled(name: str, *, window_s: float | None = None, num_engines: int = 1) -> Scaled:
    """The burst on a fleet that begins with `num_engines`.

    Args:
        window_s: The fleet shrinks to the largest number wanted in so many seconds; None: the number never changes.
    """
    burst = Burst()
    scaler = None
    if window_s is not None:
        options: dict[str, Any] = {"least": 1, "most": 8, "startup_s": 15.0, "period_s": 5.0, "down_after_s": window_s}
        scaler = Scaler(PerEngine(target=5), lambda: replica(cost_model=FOUR_H100), **options)
    fleet = run_fleet(
        burst.requests, [replica(cost_model=FOUR_H100) for _ in range(num_engines)], LeastTokens(), scaler
    )
    report = FleetReport(fleet, burst.slo)
    states = [state for state, _ in fleet.states]
    after = [_after(state, wanted) for state, wanted in fleet.states]
    return Scaled(
        name,
        report.total,
        report.engine_s,
        tuple(state.time_s for state in states),
        tuple(ready for ready, _ in after),
        tuple(paid for _, paid in after),
        tuple(burst.rate_at(state.time_s) for state in states),
        tuple(state.queue_age_s for state in states),
    )


def _after(state: FleetState, wanted: int) -> tuple[int, int]:
    """Engines that take requests, and engines paid for, once a look's decision is carried out: one that drains is taken
    back before another is started, and one that is starting is given up before another drains."""
    more = wanted - state.num_ready - state.num_starting
    paid = state.num_ready + state.num_starting + state.num_draining
    if more >= 0:
        taken_back = min(more, state.num_draining)
        return state.num_ready + taken_back, paid + more - taken_back
    given_up = min(-more, state.num_starting)
    return state.num_ready + more + given_up, paid - given_up
