"""Llama-3-70B on eight H100s: nothing of it is here but numbers from data sheets, and the scheduler."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from twophase.core.outputs import StepTrace
from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.latency import percentile
from twophase_tools.load.lengths import LogNormalLengths
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import RandomWorkload
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.model_shapes import MODELS
from twophase_tools.simulate.observers import Observer
from twophase_tools.simulate.progress import RequestProgress
from twophase_tools.simulate.simulator import Replica
from twophase_tools.simulate.step_load import StepLoad
from twophase_tools.simulate.traffic import requests_of

NUM_GPUS = 8
TTFT_SLO_S, TPOT_SLO_S = 0.5, 0.030
PROMPTS = LogNormalLengths(median=600, sigma=0.9, low=16, high=8000)
OUTPUTS = LogNormalLengths(median=200, sigma=0.6, low=8, high=1000)
NUM_REQUESTS, WARM_UP = 1200, 0.3


@cache
def llama_70b() -> RooflineCostModel:
    return RooflineCostModel(HARDWARE["h100"], MODELS["llama-3-70b"], NUM_GPUS)


def decode_load(num_seqs: int, context: int) -> StepLoad:
    """A step that decodes so many sequences of the same length."""
    return StepLoad(num_seqs, num_seqs, num_seqs, num_seqs * context, 0, 0)


@dataclass(frozen=True)
class Day:
    """Some traffic in numbers, without its beginning, when the engine was empty."""

    rate_per_s: float
    ttft_p90_s: float
    tpot_p90_s: float
    requests_per_s: float
    goodput_per_s: float


@dataclass
class Ends(Observer):
    """(arrival, end, time to first token, time per token) of each request, and nothing of its steps."""

    found: list[tuple[float, float, float, float]] = field(default_factory=list)
    wants_details: bool = field(default=False, init=False)

    def note_step(self, trace: StepTrace) -> None:
        raise AssertionError("wants no details")

    def note_gaps(self, gaps_s: Sequence[float | int], num_sequences: int) -> None:
        pass

    def note_end(self, progress: RequestProgress) -> None:
        times = progress.request.arrival_s, progress.finished_s, progress.ttft_s, progress.tpot_s
        arrival_s, end_s, ttft_s, tpot_s = (float(time_s or 0.0) for time_s in times)
        self.found.append((arrival_s, end_s, ttft_s, tpot_s))


def serve_at(rate_per_s: float, max_tokens: int = 2048) -> Day:
    """Poisson traffic at that rate, served by the default policy with a token budget per step."""
    model = llama_70b()
    limits = {
        "max_num_seqs": 512,
        "max_num_batched_tokens": max_tokens,
        "max_model_len": 16384,
        "num_blocks": model.num_blocks(),
        "block_size": 16,
    }
    workload = RandomWorkload("day", NUM_REQUESTS, Poisson(rate_per_s), PROMPTS, OUTPUTS, seed=1)
    ends = Ends()
    replica = Replica(make_scheduler(limits), model, ends)
    last_s = 0.0
    for request in requests_of(workload):
        last_s = float(request.arrival_s)
        replica.run_until(last_s)
        replica.submit(request)
    replica.run_until(math.inf)
    begin_s = WARM_UP * last_s
    later = [one for one in ends.found if one[0] >= begin_s]
    num_ended = sum(begin_s <= end_s <= last_s for _, end_s, _, _ in ends.found)
    slo = Slo(ttft_s=TTFT_SLO_S, tpot_s=TPOT_SLO_S)
    return Day(
        rate_per_s,
        percentile([ttft_s for _, _, ttft_s, _ in later], 90) or 0.0,
        percentile([tpot_s for _, _, _, tpot_s in later], 90) or 0.0,
        rate_per_s * num_ended / len(later),
        rate_per_s * sum(slo.is_met(ttft_s, tpot_s) for _, _, ttft_s, tpot_s in later) / len(later),
    )
