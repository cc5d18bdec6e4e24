"""A cost model fitted to steps that an engine has traced: short probes, and least squares of relative errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from jaxtyping import Float

from twophase.core.plan import StepTrace
from twophase_tools.load.workloads import TimedRequest
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.step_load import StepLoad, load_of_trace


@dataclass(frozen=True, slots=True)
class Probe:
    """Requests that all arrive at once: prompt lengths, and the tokens each generates."""

    prompt_lens: tuple[int, ...]
    output_len: int


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step of a probe, and how long its parts took, in seconds."""

    load: StepLoad
    schedule_s: float
    run_s: float
    update_s: float


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
    return nnls(a, np.ones(len(times_s))).tolist()


def nnls(a: Float[np.ndarray, "m n"], b: Float[np.ndarray, "m"]) -> Float[np.ndarray, "n"]:
    """The x >= 0 that minimises |a x - b|: no step gets cheaper by doing more.

    The best x is the plain least-squares solution for the columns that it uses, so each set of columns is tried; there
    are 2^n, and n is 5 here.

    Raises:
        numpy.linalg.LinAlgError: A number that is not finite.
    """
    best, least = np.zeros(a.shape[1]), float(np.linalg.norm(b))
    scale = np.maximum(np.linalg.norm(a, axis=0), 1e-300)
    columns = range(a.shape[1])
    for chosen in chain.from_iterable(combinations(columns, size) for size in range(1, len(columns) + 1)):
        found = np.linalg.lstsq(a[:, chosen] / scale[list(chosen)], b, rcond=None)[0] / scale[list(chosen)]
        distance = float(np.linalg.norm(a[:, chosen] @ found - b))
        if (found >= 0).all() and distance < least:
            best, least = np.zeros(len(columns)), distance
            best[list(chosen)] = found
    return best
