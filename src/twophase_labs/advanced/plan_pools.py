"""Prefill engines and decode engines, or engines that do both: one traffic, on paper.

The mixed fleet is the simulator of lab 4. It knows no hand-over, so the pools are played here, by the same cost model:
a prefill engine reads one prompt after the other, a decode engine runs a step for all that it has, and between them
the K and V travel.
"""

import heapq
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from twophase.core.request import Request
from twophase.scheduling.policies import ChunkedPrefillPolicy
from twophase_labs.scheduling.paper_machine import Ends
from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.latency import percentile
from twophase_tools.load.lengths import LogNormalLengths
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import RandomWorkload
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.fleet import LeastOutstanding, run_fleet
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.model_shapes import MODELS
from twophase_tools.simulate.simulator import Replica
from twophase_tools.simulate.step_load import StepLoad, num_pairs
from twophase_tools.simulate.traffic import requests_of

NUM_ENGINES = 8
MODEL = RooflineCostModel(HARDWARE["h100"], MODELS["llama-3-8b"])
LINK_BYTES_PER_S = 50e9  # 400 Gbit/s from engine to engine


@dataclass(frozen=True)
class Traffic:
    """Requests that come at random, and what is promised to them."""

    name: str
    rate_per_s: float
    prompts: LogNormalLengths
    outputs: LogNormalLengths
    slo: Slo
    num_requests: int = 400

    @property
    def requests(self) -> tuple[Request, ...]:
        workload = RandomWorkload(
            self.name, self.num_requests, Poisson(self.rate_per_s), self.prompts, self.outputs, seed=5
        )
        return tuple(requests_of(workload))

    @property
    def mean_prompt(self) -> float:
        return statistics.fmean(len(request.prompt_token_ids) for request in self.requests)

    @property
    def mean_prefill_s(self) -> float:
        return statistics.fmean(prefill_s(len(request.prompt_token_ids)) for request in self.requests)


@dataclass(frozen=True)
class Outcome:
    """What became of the requests: (TTFT, TPOT) in seconds of each, and the share of them that kept the promise."""

    times: tuple[tuple[float, float], ...]
    kept: float

    @classmethod
    def of(cls, times: Sequence[tuple[float, float]], slo: Slo) -> "Outcome":
        return cls(tuple(times), sum(slo.is_met(ttft_s, tpot_s) for ttft_s, tpot_s in times) / len(times))

    @property
    def ttft_p90_s(self) -> float:
        return percentile([ttft_s for ttft_s, _ in self.times], 90) or 0.0

    @property
    def tpot_p90_s(self) -> float:
        return percentile([tpot_s for _, tpot_s in self.times], 90) or 0.0

    @property
    def line(self) -> str:
        return (
            f"{self.kept:4.0%} of the promises kept; 9 of 10 have their first token within {self.ttft_p90_s:5.1f} s, "
            f"and {1e3 * self.tpot_p90_s:3.0f} ms per token"
        )


def prefill_s(num_tokens: int) -> float:
    """Seconds to read a prompt in one step."""
    pairs = num_pairs(0, num_tokens)
    return float(MODEL.cost(StepLoad(num_tokens, 1, 1, 0, pairs, num_tokens)).total_s)


def decode_step_s(num_seqs: int, context: int) -> float:
    """Seconds of a step that decodes `num_seqs` sequences with `context` tokens, all together."""
    return float(MODEL.cost(StepLoad(num_seqs, num_seqs, num_seqs, context, 0, 0)).total_s)


def transfer_s(num_tokens: int) -> float:
    """Seconds until the last of a prompt's K and V has arrived, if they leave when it is computed."""
    return num_tokens * MODEL.shape.kv_bytes_per_token / LINK_BYTES_PER_S


@dataclass
class DecodeEngine:
    """Runs steps for whoever is there. Only `in_pools` calls it."""

    now_s: float = 0.0
    arriving: deque[tuple[float, int, int, int]] = field(default_factory=deque)  # ready, request, tokens left, context
    running: dict[int, tuple[int, int]] = field(default_factory=dict)  # request: tokens left, context
    ended_s: dict[int, float] = field(default_factory=dict)

    def num_requests(self, time_s: float) -> int:
        self.run_until(time_s)
        return len(self.running) + len(self.arriving)

    def run_until(self, time_s: float) -> None:
        """Do the steps that start before `time_s`."""
        while self.running or self.arriving:
            start_s = self.now_s if self.running else max(self.now_s, self.arriving[0][0])
            if start_s >= time_s:
                return
            while self.arriving and self.arriving[0][0] <= start_s:
                _, request, num_left, context = self.arriving.popleft()
                self.running[request] = (num_left, context)
            total = sum(context + 1 for _, context in self.running.values())
            self.now_s = start_s + decode_step_s(len(self.running), total)
            self.running = {r: (left - 1, context + 1) for r, (left, context) in self.running.items()}
            for request in [r for r, (left, _) in self.running.items() if left == 0]:
                del self.running[request]
                self.ended_s[request] = self.now_s


def in_pools(traffic: Traffic, num_prefill: int, num_decode: int) -> Outcome:
    """The first so many engines read prompts, in order of arrival; the others write, each request in one place."""
    requests = traffic.requests
    free_s = [0.0] * num_prefill
    read: list[tuple[float, int]] = []  # end of a prefill, and whose
    for number, request in enumerate(requests):
        start_s = max(heapq.heappop(free_s), float(request.arrival_s))
        end_s = start_s + prefill_s(len(request.prompt_token_ids))
        heapq.heappush(free_s, end_s)
        read.append((end_s, number))
    engines, first_s = [DecodeEngine() for _ in range(num_decode)], {}
    for end_s, number in sorted(read):
        request, num_tokens = requests[number], len(requests[number].prompt_token_ids)
        first_s[number] = end_s
        if request.sampling_params.max_tokens > 1:
            engine = min(engines, key=lambda engine: engine.num_requests(end_s))
            ready_s = max(end_s + transfer_s(num_tokens), engine.arriving[-1][0] if engine.arriving else 0.0)
            engine.arriving.append((ready_s, number, request.sampling_params.max_tokens - 1, num_tokens))
    for engine in engines:
        engine.run_until(math.inf)
    ended_s = {number: end_s for engine in engines for number, end_s in engine.ended_s.items()}
    times = []
    for number, request in enumerate(requests):
        num_more = request.sampling_params.max_tokens - 1
        tpot_s = (ended_s[number] - first_s[number]) / num_more if num_more else 0.0
        times.append((first_s[number] - float(request.arrival_s), tpot_s))
    return Outcome.of(times, traffic.slo)


def mixed(traffic: Traffic, max_tokens: int) -> Outcome:
    """Every engine does both, in chunks: `max_tokens` of a step at most, decodes first."""
    limits = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 16384,
        "num_blocks": MODEL.num_blocks(),
        "block_size": 16,
    }
    ends = [Ends() for _ in range(NUM_ENGINES)]
    replicas = []
    for end in ends:
        scheduler = make_scheduler(limits)
        scheduler.policy = ChunkedPrefillPolicy(max_tokens)
        replicas.append(Replica(scheduler, MODEL, end))
    run_fleet(traffic.requests, replicas, LeastOutstanding())
    found = sorted(one for end in ends for one in end.found)
    return Outcome.of([(ttft_s, tpot_s) for _, _, ttft_s, tpot_s in found], traffic.slo)


DOCUMENTS = Traffic(
    "documents", 36.0, LogNormalLengths(median=4000, sigma=0.6, low=200, high=14000),
    LogNormalLengths(median=120, sigma=0.5, low=8, high=600), Slo(ttft_s=1.0, tpot_s=0.012),
)  # fmt: skip


@cache
def splits(traffic: Traffic) -> dict[int, Outcome]:
    """For each number of prefill engines what becomes of the traffic."""
    return {n: in_pools(traffic, n, NUM_ENGINES - n) for n in range(1, NUM_ENGINES)}


def best_split(traffic: Traffic = DOCUMENTS) -> int:
    """Prefill engines of the split that keeps the most promises."""
    found = splits(traffic)
    return max(found, key=lambda n: found[n].kept)


def stage_seconds(num_tokens: int, num_chunks: int, num_stages: int) -> list[list[float]]:
    """Seconds of each chunk of a prompt of Llama-3-70B in each stage, by roofline: an H100 per stage, an equal share of
    the layers, the output projection left out."""
    shape = MODELS["llama-3-70b"]
    stage = replace(shape, num_layers=shape.num_layers // num_stages, vocab_size=0)
    model = RooflineCostModel(HARDWARE["h100"], stage)
    size = num_tokens // num_chunks
    each = [
        float(model.run_s(StepLoad(size, 0, 1, 0, num_pairs(start, size), start + size)))
        for start in range(0, num_tokens, size)
    ]
    return [each] * num_stages
