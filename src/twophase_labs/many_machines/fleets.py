"""Fleets of simulated H100s with Llama-3-8B, and the traffic that this lab sends them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

from twophase.core.request import Request
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.latency import percentile
from twophase_tools.load.lengths import LogNormalLengths
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.report import ServingReport
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import RandomWorkload, SharedPrefix
from twophase_tools.simulate.cost_model import CostModel, RooflineCostModel
from twophase_tools.simulate.fleet import Fleet, run_fleet
from twophase_tools.simulate.fleet_report import FleetReport
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.model_shapes import MODELS
from twophase_tools.simulate.pools import Link, run_pools
from twophase_tools.simulate.routers import LeastTokens, PrefixAware, RoundRobin, Router
from twophase_tools.simulate.simulator import Replica
from twophase_tools.simulate.step_load import StepLoad, num_pairs
from twophase_tools.simulate.traffic import requests_of

BLOCK_SIZE = 16
WEIGHT = 4.0  # of a token of prefill, in tokens of load
SHAPE = MODELS["llama-3-8b"]
H100 = RooflineCostModel(HARDWARE["h100"], SHAPE)


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


def replica(max_tokens: int = 2048, cost_model: CostModel = H100, *, is_caching: bool = False) -> Replica:
    """An engine whose steps have so many tokens at most."""
    limits = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 32768,
        "num_blocks": cost_model.num_blocks() if isinstance(cost_model, RooflineCostModel) else H100.num_blocks(),
        "block_size": BLOCK_SIZE,
    }
    scheduler = make_scheduler(limits, ChunkedPrefillPolicy(max_tokens), enable_prefix_caching=is_caching)
    return Replica(scheduler, cost_model, keeps_steps=False)


def serve(
    traffic: Traffic,
    router: Router,
    num_engines: int = 4,
    name: str = "",
    max_tokens: int = 2048,
    cost_model: CostModel = H100,
) -> Outcome:
    """Simulate a fleet: the same requests at the same times, whatever the router."""
    is_caching = traffic.prefix is not None
    replicas = [replica(max_tokens, cost_model, is_caching=is_caching) for _ in range(num_engines)]
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
    engines = [*prefill.replicas, *decode.replicas]
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
