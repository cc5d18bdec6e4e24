"""Predicted against measured, on workloads that the cost model was not fitted to."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from twophase.core.plan import StepTrace
from twophase_tools.bench.serve import ServingRun
from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.latency import percentile
from twophase_tools.load.lengths import Lengths, LogNormalLengths, UniformLengths
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.report import window_of
from twophase_tools.load.workloads import RandomWorkload, Workload
from twophase_tools.simulate.calibrate import Calibration, fit, play_probes, samples_of
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.rig import Rig
from twophase_tools.simulate.simulator import SimulationResult, simulate
from twophase_tools.simulate.traffic import requests_of

PERCENTS = (50, 90, 99)
TOLERANCE = 0.15
STEPS_MATTER = 0.05  # an error of the step times below this explains nothing by itself
NEAR_SATURATION = 0.8


@dataclass(frozen=True, slots=True)
class Case:
    """A workload to predict. `load` is its arrival rate as a share of what the engine can serve at most."""

    name: str
    load: float | int
    prompt_lens: Lengths
    output_lens: Lengths
    seed: int


# Other lengths than the probes', and arrivals over time: half busy, nearly full, twice too much.
CASES = (
    Case("half load", 0.5, UniformLengths(16, 128), UniformLengths(8, 48), 1),
    Case("near saturation", 0.9, UniformLengths(16, 128), UniformLengths(8, 48), 2),
    Case("overload", 2.0, UniformLengths(16, 128), UniformLengths(8, 48), 3),
    Case("long prompts", 0.7, LogNormalLengths(200, 0.7, 32, 1000), UniformLengths(8, 32), 4),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One number of one workload; `unit` is 's' or 'tokens/s'."""

    case: str
    metric: str
    unit: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One workload.

    Attributes:
        step_error: Predicted over measured time of the steps that the engine really took, minus 1: what the cost model
            alone gets wrong, whatever the queue makes of it.
    """

    name: str
    load: float | int
    rate_per_s: float
    num_requests: int
    rows: tuple[Row, ...]
    step_error: float

    def reason(self, row: Row) -> str:
        """Why a row is far off, as far as the run itself can tell."""
        steps = f"the steps it took are predicted {self.step_error:+.0%}"
        is_throughput = row.metric == "throughput"
        if self.step_error * row.error * (-1 if is_throughput else 1) > 0 and abs(self.step_error) > STEPS_MATTER:
            changed = "slower" if self.step_error < 0 else "faster"
            because = f"{steps}: the machine was {changed} than when it was calibrated, or the formula is off here"
        else:
            because = steps
            if NEAR_SATURATION <= self.load <= 1 / NEAR_SATURATION:
                because += "; near saturation batch and queue grow steeply with the load, which multiplies small errors"
        if row.metric.endswith("p99") and self.num_requests < 200:
            because += f"; a p99 of {self.num_requests} requests is one or two of them"
        return because


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """The table."""

    calibration: Calibration
    cases: tuple[CaseResult, ...]

    @property
    def rows(self) -> list[Row]:
        return [row for case in self.cases for row in case.rows]

    @property
    def median_error(self) -> float:
        """Median over all rows of the absolute relative error."""
        return statistics.median(abs(row.error) for row in self.rows)

    def to_text(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        setup = self.calibration.setup
        yield ", ".join(f"{name} {value}" for name, value in setup.items())
        yield self.calibration.to_text()
        for case in self.cases:
            yield ""
            yield (
                f"{case.name}: {case.num_requests} requests at {case.rate_per_s:.3g}/s, {case.load:.0%} of what can be "
                f"served; steps predicted {case.step_error:+.1%}"
            )
            yield f"  {'':<12}{'predicted':>12}{'measured':>12}{'error':>9}"
            for row in case.rows:
                note = "" if abs(row.error) <= TOLERANCE else f"  {case.reason(row)}"
                yield f"  {row.metric:<12}{row.predicted:>12.4g}{row.measured:>12.4g}{row.error:>+9.1%}{note}"
        num_far = sum(abs(row.error) > TOLERANCE for row in self.rows)
        yield ""
        yield (
            f"median error {self.median_error:.1%} over {len(self.rows)} rows, {num_far} of them beyond "
            f"{TOLERANCE:.0%} (times in seconds, throughput in output tokens per second)"
        )
        machine = self.calibration.machine
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        yield f"{machine['date_utc']}  {machine['cpu']}, {machine['num_cores']} cores; {versions}"

    def to_dict(self) -> dict[str, Any]:
        cases = [
            asdict(case)
            | {"rows": [asdict(row) | {"error": row.error} for row in case.rows]}
            | {"beyond_tolerance": {r.metric: case.reason(r) for r in case.rows if abs(r.error) > TOLERANCE}}
            for case in self.cases
        ]
        return {"calibration": asdict(self.calibration), "median_error": self.median_error, "cases": cases}


def validate(
    rig: Rig,
    cases: Sequence[Case] = CASES,
    *,
    seconds_per_case: float | int = 20,
    say: Callable[[str], None] = lambda line: None,
) -> ValidationReport:
    """Fit on the probes, measure the cases on the engine, predict them in the simulator, compare.

    A round of probes is played before, between and after the measured runs, and the medians over all rounds are fitted:
    a machine that others use drifts, and the probes should see the same drift as the runs.

    Args:
        seconds_per_case: How long a measured run should take, roughly.
    """
    say("probes")
    rounds: list[list[StepTrace]] = [play_probes(rig)]
    measured: list[tuple[Case, Workload, ServingRun]] = []
    for case in cases:
        workload = _workload(case, fit(rig, rounds), seconds_per_case)
        say(f"{case.name}: {workload.num_requests} requests")
        measured.append((case, workload, rig.play(workload)))
        say("probes")
        rounds.append(play_probes(rig))
    calibration = fit(rig, rounds)
    results = [_compare(case, workload, run, calibration) for case, workload, run in measured]
    return ValidationReport(calibration, tuple(results))


def predict(workload: Workload, calibration: Calibration) -> SimulationResult:
    """The workload on the calibrated engine, simulated."""
    return simulate(requests_of(workload), make_scheduler(calibration.limits), calibration.cost_model)


def capacity_per_s(calibration: Calibration, prompt_lens: Lengths, output_lens: Lengths) -> float:
    """Requests per second that the calibrated engine completes when many wait: predicted, of 200 at once."""
    burst = RandomWorkload("burst", 200, Poisson(1e6), prompt_lens, output_lens)
    start_s, end_s = window_of(predict(burst, calibration).records)
    return 200 / (end_s - start_s)


def _workload(case: Case, calibration: Calibration, seconds: float | int) -> RandomWorkload:
    """At the case's load, and of such a size that serving it takes about `seconds`."""
    capacity = capacity_per_s(calibration, case.prompt_lens, case.output_lens)
    num_requests = max(24, math.ceil(seconds * capacity * min(case.load, 1)))
    arrivals = Poisson(case.load * capacity)
    return RandomWorkload(case.name, num_requests, arrivals, case.prompt_lens, case.output_lens, seed=case.seed)


def _compare(case: Case, workload: Workload, run: ServingRun, calibration: Calibration) -> CaseResult:
    predicted = predict(workload, calibration).records
    rows = [
        Row(case.name, metric, unit, ours, theirs)
        for (metric, unit, ours), (_, _, theirs) in zip(_metrics(predicted), _metrics(run.records), strict=True)
    ]
    arrivals_s = [request.arrival_s for request in workload]
    return CaseResult(
        name=case.name,
        load=case.load,
        rate_per_s=len(arrivals_s) / arrivals_s[-1],
        num_requests=len(arrivals_s),
        rows=tuple(rows),
        step_error=_step_error(run.steps, calibration),
    )


def _metrics(records: Sequence[RequestRecord]) -> Iterator[tuple[str, str, float]]:
    for name, values in (
        ("TTFT", [record.ttft_s for record in records if record.ttft_s is not None]),
        ("TPOT", [record.tpot_s for record in records if record.tpot_s is not None]),
    ):
        for percent in PERCENTS:
            yield f"{name} p{percent}", "s", percentile(values, percent) or math.nan
    start_s, end_s = window_of(records)
    yield "throughput", "tokens/s", sum(record.num_output_tokens for record in records) / (end_s - start_s)


def _step_error(steps: Sequence[StepTrace], calibration: Calibration) -> float:
    predicted_s = sum(calibration.cost_model.cost(sample.load).total_s for sample in samples_of(steps))
    return float(predicted_s / sum(step.schedule_s + step.run_s + step.update_s for step in steps) - 1)
