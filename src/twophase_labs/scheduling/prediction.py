"""A cost model fitted to this machine, and runs that it has not seen: predicted and measured."""

import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from twophase_labs.scheduling.engine_rig import LIMITS, serve_here
from twophase_tools.bench.serve import ServingRun
from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.latency import percentile
from twophase_tools.load.lengths import UniformLengths
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.report import window_of
from twophase_tools.load.workloads import RandomWorkload, TimedRequest
from twophase_tools.simulate.calibrate import Probe, StepSample, fit_cost_model, probe_requests, samples_of
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.simulator import SimulationResult, simulate
from twophase_tools.simulate.traffic import requests_of

# Few and many sequences, short and long prompts, alone and together: what the fit has to tell apart.
PROBES = (
    Probe((8,), 5),
    Probe((300,), 4),
    Probe((24,) * 4, 5),
    Probe((16,) * 16, 5),
    Probe((12,) * 28, 4),
    Probe((48, 112, 180), 4),
)
PROMPTS, OUTPUTS = UniformLengths(16, 128), UniformLengths(8, 32)


class Measured(NamedTuple):
    """What was measured on this machine.

    Attributes:
        samples: Every step of the probes, with the median times over the rounds.
        workloads, runs: What was served besides, and how it went; no fit sees them.
    """

    samples: list[StepSample]
    workloads: dict[str, RandomWorkload]
    runs: dict[str, ServingRun]


def play_probes() -> list[StepSample]:
    """One round: the steps of all probes, the same ones in every round."""
    requests = [probe_requests(probe, LIMITS["max_model_len"] - probe.output_len) for probe in PROBES]
    return [sample for one in requests for sample in samples_of(serve_here(one).steps)]


def medians(rounds: Sequence[Sequence[StepSample]]) -> list[StepSample]:
    return [
        StepSample(
            same[0].load,
            statistics.median(sample.schedule_s for sample in same),
            statistics.median(sample.run_s for sample in same),
            statistics.median(sample.update_s for sample in same),
        )
        for same in zip(*rounds, strict=True)
    ]


@cache
def measured_here() -> Measured:
    """Probes before and after a workload: a machine that others use drifts, and both see the same drift."""
    rounds = [play_probes()]
    planned = fit_cost_model(rounds[0])
    workloads = {"80 % of what it can serve": workload(planned, 0.8, 14, seed=3)}
    runs = {}
    for name, one in workloads.items():
        runs[name] = serve_here(one)
        rounds.append(play_probes())
    return Measured(medians(rounds), workloads, runs)


@cache
def fitted() -> LinearCostModel:
    """The package's own fit to the probes."""
    return fit_cost_model(measured_here().samples)


def predict(workload: RandomWorkload | Sequence[TimedRequest], model: LinearCostModel) -> SimulationResult:
    """The workload on this engine's limits, simulated."""
    return simulate(requests_of(workload), make_scheduler(LIMITS), model)


def capacity_per_s(model: LinearCostModel) -> float:
    """Requests per second when very many wait, predicted."""
    burst = RandomWorkload("burst", 100, Poisson(1e6), PROMPTS, OUTPUTS)
    start_s, end_s = window_of(predict(burst, model).records)
    return 100 / (end_s - start_s)


def workload(model: LinearCostModel, load: float, num_requests: int, seed: int) -> RandomWorkload:
    """At a share of what the engine can serve at most."""
    arrivals = Poisson(load * capacity_per_s(model))
    return RandomWorkload(f"load {load:.0%}", num_requests, arrivals, PROMPTS, OUTPUTS, seed=seed)


def figures(records: Sequence[RequestRecord]) -> dict[str, float]:
    """What is compared: milliseconds, and tokens per second."""
    ttfts = [record.ttft_s for record in records if record.ttft_s is not None]
    tpots = [record.tpot_s for record in records if record.tpot_s is not None]
    start_s, end_s = window_of(records)
    return {
        "TTFT p50 (ms)": 1e3 * (percentile(ttfts, 50) or 0),
        "TTFT p90 (ms)": 1e3 * (percentile(ttfts, 90) or 0),
        "TPOT p50 (ms)": 1e3 * (percentile(tpots, 50) or 0),
        "TPOT p90 (ms)": 1e3 * (percentile(tpots, 90) or 0),
        "tokens/s": sum(record.num_output_tokens for record in records) / (end_s - start_s),
    }


def table(predicted: SimulationResult, measured: ServingRun) -> str:
    """Predicted against measured, with the error."""
    lines = [f"{'':16}{'predicted':>10}{'measured':>10}{'error':>8}"]
    theirs = figures(measured.records)
    for name, ours in figures(predicted.records).items():
        lines.append(f"{name:16}{ours:10.1f}{theirs[name]:10.1f}{ours / theirs[name] - 1:+8.0%}")
    return "\n".join(lines)


def step_times(run: ServingRun, model: LinearCostModel) -> list[tuple[float, float, bool]]:
    """(measured, predicted, is all decodes) of every step that the engine took."""
    samples = samples_of(run.steps)
    return [(sample.run_s, float(model.run_s(sample.load)), sample.load.prefill_pairs == 0) for sample in samples]
