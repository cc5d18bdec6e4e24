"""Fits the cost model to this machine: short probes on the real engine, repeated in turns, medians, least squares."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twophase.core.errors import ConfigError
from twophase.core.plan import StepTrace
from twophase_tools.bench.machine import record_machine
from twophase_tools.load.workloads import TimedRequest
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.nnls import nnls
from twophase_tools.simulate.rig import Rig
from twophase_tools.simulate.step_load import StepLoad, load_of_trace


@dataclass(frozen=True, slots=True)
class Probe:
    """Requests that all arrive at once: prompt lengths, and the tokens each generates."""

    prompt_lens: tuple[int, ...]
    output_len: int


# Few and many sequences, short and long contexts, whole prompts and chunks, alone and mixed with decodes. Seconds per
# round: a CPU computes about a thousand prompt tokens per second, a GPU a hundred times as many.
PROBES = {
    "cpu": (
        Probe((8,), 5),
        Probe((400,), 4),
        Probe((24,) * 4, 5),
        Probe((1000,), 4),
        Probe((16,) * 16, 5),
        Probe((300,) * 4, 4),
        Probe((12,) * 32, 4),
        Probe((48, 112, 200), 4),
    ),
    "cuda": (
        Probe((8,), 20),
        Probe((2000,), 20),
        Probe((256,) * 8, 20),
        Probe((64,) * 64, 20),
        Probe((1500,) * 16, 20),
        Probe((32,) * 200, 20),
        Probe((1000,) * 64, 10),
        Probe((300, 900, 1800), 20),
    ),
}


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step of a probe, with the medians of its parts over the rounds, in seconds."""

    load: StepLoad
    schedule_s: float
    run_s: float
    update_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted cost model, and on what it was fitted.

    Attributes:
        setup: What the times depend on besides the machine: see `Rig`.
        limits: The engine's `SchedulerConfig`, and the pool's num_blocks and block_size.
        machine: `bench.machine.MachineRecord` as a dict: hardware, versions, date.
        round_times_s: How long the same probes took in each round: if they differ, so does the machine.
        key: What tells whether a stored one may be used again; None: nobody asked.
        median_error, worst_error: Of the fitted steps' run times, relative; `worst_load` is where.
    """

    cost_model: LinearCostModel
    setup: dict[str, Any]
    limits: dict[str, Any]
    machine: dict[str, Any]
    round_times_s: Sequence[float]
    num_steps: int
    median_error: float
    worst_error: float
    worst_load: dict[str, int]
    key: dict[str, Any] | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Calibration":
        """Raises ConfigError if this is not a calibration."""
        try:
            data = json.loads(text)
            return cls(**{**data, "cost_model": LinearCostModel(**data["cost_model"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"this is not a calibration ({error}); run `twophase simulate --calibrate`.") from error

    def to_text(self) -> str:
        model = self.cost_model
        return (
            f"fitted to {self.num_steps} steps, medians of {len(self.round_times_s)} rounds of "
            f"{min(self.round_times_s):.1f} to {max(self.round_times_s):.1f} s: "
            f"{model.per_step_s * 1e3:.2f} ms per step + {model.per_token_s * 1e6:.1f} us per token + "
            f"{model.per_sample_s * 1e6:.1f} us per sample + {model.per_context_s * 1e9:.0f} ns per key of decodes + "
            f"{model.per_pair_s * 1e9:.0f} ns per query-key pair of prefills; "
            f"error median {self.median_error:.1%}, worst {self.worst_error:.0%}"
        )


def calibrate(rig: Rig, num_rounds: int = 3) -> Calibration:
    """Play the probes `num_rounds` times in turns, and fit. Tens of seconds on a CPU."""
    return fit(rig, [play_probes(rig) for _ in range(num_rounds)])


def play_probes(rig: Rig) -> list[StepTrace]:
    """One round: the steps of every probe, the same ones in every round."""
    steps: list[StepTrace] = []
    for probe in PROBES[rig.device_type]:
        longest = rig.limits["max_model_len"] - probe.output_len
        steps += rig.play(probe_requests(probe, longest)).steps
    return steps


def probe_requests(probe: Probe, longest: int) -> list[TimedRequest]:
    """What a probe sends; prompts longer than `longest` are cut."""
    lengths = [min(length, longest) for length in probe.prompt_lens]
    return [TimedRequest(f"probe-{i}", 0.0, length, probe.output_len) for i, length in enumerate(lengths)]


def samples_of(steps: Sequence[StepTrace]) -> list[StepSample]:
    """What each step computed and took. A trace does not tell which chunks ended their prompts and sampled: those that
    the next step does not go on with."""
    samples = []
    for i, step in enumerate(steps):
        begun = {
            (request_id, index, start)
            for later in steps[i + 1 : i + 2]
            for request_id, index, start, _ in later.chunks[later.num_decodes :]
        }
        prefills = step.chunks[step.num_decodes :]
        num_done = sum((request_id, index, start + count) not in begun for request_id, index, start, count in prefills)
        load = load_of_trace(step.chunks, step.num_decodes, step.num_decodes + num_done)
        samples.append(StepSample(load, step.schedule_s, step.run_s, step.update_s))
    return samples


def fit(rig: Rig, rounds: Sequence[Sequence[StepTrace]]) -> Calibration:
    """The cost model that fits the medians over the rounds best, in relative terms."""
    per_round = [samples_of(steps) for steps in rounds]
    samples = [
        StepSample(
            same[0].load,
            statistics.median(sample.schedule_s for sample in same),
            statistics.median(sample.run_s for sample in same),
            statistics.median(sample.update_s for sample in same),
        )
        for same in zip(*per_round, strict=True)
    ]
    model = fit_cost_model(samples)
    errors = [float(model.run_s(sample.load)) / sample.run_s - 1 for sample in samples]
    worst = max(range(len(errors)), key=lambda i: abs(errors[i]))
    return Calibration(
        cost_model=model,
        setup=rig.setup,
        limits=rig.limits,
        machine=asdict(record_machine()),
        round_times_s=tuple(sum(step.run_s for step in steps) for steps in rounds),
        num_steps=len(samples),
        median_error=statistics.median(map(abs, errors)),
        worst_error=errors[worst],
        worst_load=samples[worst].load._asdict(),
    )


def fit_cost_model(samples: Sequence[StepSample]) -> LinearCostModel:
    """Non-negative least squares of relative errors: a 30 ms step matters as much as a 700 ms one."""
    loads = [sample.load for sample in samples]
    run = _fit(
        [(1, x.num_tokens, x.num_samples, x.decode_context, x.prefill_pairs) for x in loads],
        [sample.run_s for sample in samples],
    )
    overhead = [(1, x.num_chunks) for x in loads]
    schedule = _fit(overhead, [sample.schedule_s for sample in samples])
    update = _fit(overhead, [sample.update_s for sample in samples])
    return LinearCostModel(*run, *schedule, *update)


def _fit(features: Sequence[tuple[int | float, ...]], times_s: Sequence[float]) -> list[float]:
    weights = 1 / np.maximum(np.array(times_s), 1e-9)
    a = np.array(features, dtype=float) * weights[:, None]
    return [float(x) for x in nnls(a, np.ones(len(times_s)))]


def read_calibration(path: Path) -> Calibration:
    """Raises ConfigError if there is none, or it is broken."""
    try:
        return Calibration.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"no calibration at {path}: {error.strerror}; run `twophase simulate --calibrate`."
        ) from error
