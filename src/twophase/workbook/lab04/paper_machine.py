"""Llama-3-70B on eight H100s: nothing of it is here but numbers from data sheets, and the scheduler."""

from dataclasses import dataclass
from functools import cache

from twophase.serving.arrivals import Poisson
from twophase.serving.latency import percentile
from twophase.serving.lengths import LogNormalLengths
from twophase.serving.slo import Slo
from twophase.serving.workloads import RandomWorkload
from twophase.simulate.cost_model import RooflineCostModel
from twophase.simulate.hardware import HARDWARE
from twophase.simulate.limits import make_scheduler
from twophase.simulate.model_shapes import MODELS
from twophase.simulate.simulator import simulate
from twophase.simulate.step_load import StepLoad
from twophase.simulate.traffic import requests_of

NUM_GPUS = 8
TTFT_SLO_S, TPOT_SLO_S = 0.5, 0.030
PROMPTS = LogNormalLengths(median=600, sigma=0.9, low=16, high=8000)
OUTPUTS = LogNormalLengths(median=200, sigma=0.6, low=8, high=1000)
NUM_REQUESTS = 300


@cache
def llama_70b() -> RooflineCostModel:
    return RooflineCostModel(HARDWARE["h100"], MODELS["llama-3-70b"], NUM_GPUS)


def decode_load(num_seqs: int, context: int) -> StepLoad:
    """A step that decodes so many sequences of the same length."""
    return StepLoad(num_seqs, num_seqs, num_seqs, num_seqs * context, 0, 0)


@dataclass(frozen=True)
class Day:
    """Some traffic in numbers, without its beginning."""

    rate_per_s: float
    ttft_p90_s: float
    tpot_p90_s: float
    requests_per_s: float
    goodput_per_s: float


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
    records = simulate(requests_of(workload), make_scheduler(limits), model).records
    # The later half of the arrivals: the engine is neither filling up then nor running empty.
    later = records[len(records) // 2 :]
    start_s, end_s = later[0].arrival_s, later[-1].arrival_s
    num_ended = sum(record.finished_s is not None and start_s < record.finished_s <= end_s for record in records)
    slo = Slo(ttft_s=TTFT_SLO_S, tpot_s=TPOT_SLO_S)
    return Day(
        rate_per_s,
        percentile([record.ttft_s for record in later if record.ttft_s is not None], 90) or 0.0,
        percentile([record.tpot_s for record in later if record.tpot_s is not None], 90) or 0.0,
        num_ended / (end_s - start_s),
        sum(bool(record.meets(slo)) for record in later) / (end_s - start_s),
    )
