"""`twophase bench engine`: this engine against `transformers.generate` and vLLM, in turns."""

import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from twophase.core.errors import ConfigError
from twophase_tools.bench.peers.launches import BATCH, ONE_BY_ONE, OURS, VLLM, Setup, launch_of
from twophase_tools.bench.peers.process import PeerError, PeerProcess
from twophase_tools.bench.report import table
from twophase_tools.bench.turns import Say, in_turns

MIB = 1024**2

NOTES = (
    "All engines of a workload have the same weights and threads, run in turns, each in a process of its own, which",
    "times it; they get all requests at once, generate greedily and ignore end-of-text; tokens/s counts what is asked.",
    "'one batch' pads prompts on the left and generates to the longest output; its surplus tokens are discarded.",
    "'one by one' serves the requests in order, and each one's TTFT counts from the common start.",
    "Peak memory: CPU, resident beyond the imports; CUDA, allocated by torch. Equal: requests with our greedy tokens.",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that all arrive at once; request i has `prompts[i]` and generates exactly `output_lens[i]` tokens."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    output_lens: tuple[int, ...]

    @property
    def lengths(self) -> list[int]:
        """Of the sequences at their ends."""
        return [len(prompt) + n for prompt, n in zip(self.prompts, self.output_lens, strict=True)]


def workloads(vocab_size: int, quick: bool = False) -> tuple[Workload, ...]:
    """One stream, and a ragged batch: lengths uniform in closed ranges, ids uniform over the vocabulary; the same
    everywhere."""
    sizes = {"single": (1, (128, 128), (128, 128)), "ragged": (32, (16, 512), (16, 256))}
    if quick:
        sizes = {"single": (1, (8, 8), (4, 4)), "ragged": (3, (2, 12), (2, 6))}
    found = []
    for name, (num_requests, prompt_lens, output_lens) in sizes.items():
        rng = random.Random(0)
        prompts = tuple(
            tuple(rng.randrange(vocab_size) for _ in range(rng.randint(*prompt_lens))) for _ in range(num_requests)
        )
        found.append(Workload(name, prompts, tuple(rng.randint(*output_lens) for _ in range(num_requests))))
    return tuple(found)


# What an engine computes in, and what our linear layers are rounded to. The others are compared with plain ones.
WEIGHTS: dict[str, tuple[str, str | None]] = {
    "fp32": ("float32", None),
    "fp16": ("float16", None),
    "bf16": ("bfloat16", None),
    "int8": ("bfloat16", "int8"),
    "int8_dynamic": ("bfloat16", "int8_dynamic"),
    "int4": ("bfloat16", "int4"),
}
RIVALS = (BATCH, ONE_BY_ONE, VLLM)
COLUMNS = ("workload", "weights", "engine", "tokens/s:", "TTFT p50:", "peak memory:", "equal:", "")


@dataclass(frozen=True, slots=True)
class Result:
    """An engine on one workload, with one form of the weights: medians over its runs.

    Attributes:
        workload, weights: 'single' or 'ragged'; a name of `WEIGHTS`.
        problem: Why there is no result: 'not run: ...' or 'failed: ...'.
        ttft_p50_s: Median over requests of the time to first token.
        peak_memory_bytes: None where the system does not tell.
        num_equal: Requests whose greedy tokens equal ours; None where rounding makes the comparison meaningless
            (anything but float32).
    """

    workload: str
    weights: str
    name: str
    problem: str | None = None
    num_runs: int = 0
    elapsed_s: float | None = None
    tokens_per_s: float | None = None
    ttft_p50_s: float | None = None
    peak_memory_bytes: int | None = None
    num_equal: int | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def cells(self) -> tuple[str, ...]:
        """Of `COLUMNS`."""
        numbers = (
            "" if self.tokens_per_s is None else f"{self.tokens_per_s:.1f}",
            "" if self.ttft_p50_s is None else f"{self.ttft_p50_s:.2f} s",
            "" if self.peak_memory_bytes is None else f"{self.peak_memory_bytes / MIB:,.0f} MiB",
            "" if self.num_equal is None else f"{self.num_equal}",
        )
        return (self.workload, self.weights, self.name, *numbers, self.problem or "")


@dataclass(frozen=True, slots=True)
class EngineReport:
    """A whole run; `backend` is this engine's attention."""

    model: str
    device: str
    backend: str
    num_threads: int
    results: tuple[Result, ...]

    def to_text(self) -> str:
        versions = {each.name: each.versions for each in self.results if each.versions}
        used = [f"{self.model} on {self.device}, attention {self.backend}, {self.num_threads} threads"]
        used += [f"  {who}: {', '.join(f'{p} {v}' for p, v in of_one.items())}" for who, of_one in versions.items()]
        return "\n".join([table(COLUMNS, (each.cells for each in self.results)), "", *used, "", *NOTES, ""])


def bench_engine(
    model: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    backend: str = "auto",
    num_threads: int | None = None,
    repeats: int = 3,
    quick: bool = False,
    weights: Sequence[str] = (),
    vllm_python: str | None = None,
    say: Say = lambda line: None,
) -> EngineReport:
    """Run both workloads; `say` hears what is being done.

    Args:
        weights: Names of `WEIGHTS`; none: plain weights in `dtype`.
        vllm_python: An interpreter that has vLLM; None: vLLM is reported as not run.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError, BackendUnavailableError: As `LLM`.
    """
    if unknown := [name for name in weights if name not in WEIGHTS]:
        raise ConfigError(f"--weights must be names of {', '.join(WEIGHTS)}; got {', '.join(unknown)}.")
    if weights and dtype != "auto":
        raise ConfigError(f"--weights says what is computed in, so --dtype {dtype} cannot be given with it.")
    num_threads = num_threads or torch.get_num_threads()
    results: list[Result] = []
    folder, device, dtype, backend, vocab_size = _resolve(model, device, dtype, backend)
    setup = Setup(folder, device, dtype, backend, num_threads, vllm_python)
    plain = next(name for name, (of_name, _) in WEIGHTS.items() if of_name == dtype)
    for name in weights or (plain,):
        for workload in workloads(vocab_size, quick):
            results += _bench_workload(name, workload, setup, 1 if quick else repeats, say)
    return EngineReport(model, setup.device, setup.backend, num_threads, tuple(results))


def _resolve(model: str, device: str, dtype: str, backend: str) -> tuple[str, str, str, str, int]:
    """What 'auto' stands for here: folder, device, dtype and backend; and the model's vocabulary size."""
    from twophase.model.config import load_config
    from twophase.model.llama import model_backend
    from twophase.model.machine import make_backend, resolve_device, resolve_dtype
    from twophase_features.model_store.prepare import resolve_model

    folder = resolve_model(model)
    config, torch_device = load_config(folder), resolve_device(device)
    torch_dtype = resolve_dtype(dtype, config, torch_device)
    make = partial(make_backend, backend, device=torch_device, dtype=torch_dtype, block_size=16)
    name = str(torch_dtype).removeprefix("torch.")
    return str(folder), str(torch_device), name, model_backend(config, make).name, config.vocab_size


def _bench_workload(weights: str, workload: Workload, setup: Setup, repeats: int, say: Say) -> list[Result]:
    dtype, quantization = WEIGHTS[weights]
    setup = replace(setup, dtype=dtype, quantization=quantization)
    names = [OURS] if quantization is not None else [OURS, *RIVALS]
    if len(workload.prompts) == 1:  # a batch and one by one are the same
        names = [name for name in names if name != BATCH]
    results = {name: Result(workload.name, weights, name) for name in names}
    engines: dict[str, PeerProcess] = {}
    with ExitStack() as opened:
        for name in names:
            say(f"{workload.name}, {weights}: loading {name}")
            try:
                engines[name] = PeerProcess(launch_of(name, setup, workload.lengths))
                opened.callback(engines[name].close)
            except PeerError as error:
                results[name] = replace(results[name], problem=str(error))
        runs, problems = take_turns(engines, workload, repeats, lambda line: say(f"{workload.name}, {line}"))
    reference = runs[OURS][0]["token_ids"] if weights == "fp32" and OURS in runs else None
    for name, problem in problems.items():
        results[name] = replace(results[name], problem=problem)
    for name, of_name in runs.items():
        results[name] = _with_medians(results[name], workload, of_name, engines[name].versions, reference)
    return [*results.values()]


def take_turns(
    engines: Mapping[str, PeerProcess], workload: Workload, repeats: int, say: Say
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """All runs by engine, and why others have none: one that fails runs no more."""
    problems: dict[str, str] = {}

    def way(name: str, number: int) -> dict[str, Any]:
        if name in problems:
            return {}
        prompts, lengths = workload.prompts, workload.output_lens
        if number == 0:
            prompts, lengths = prompts[:2], (2,) * len(prompts[:2])
        try:
            answer = engines[name].run(prompts, lengths)
        except PeerError as error:
            problems[name] = str(error)
            say(f"{name} {error}")
            return {}
        if number:
            # Said when done, with the time: a run of many minutes that is cut short should not lose everything.
            say(f"round {number} of {repeats}, {name}: {answer['elapsed_s']:.2f} s")
        return answer

    found = in_turns({name: partial(way, name) for name in engines}, repeats)
    return {name: runs for name, runs in found.items() if name not in problems}, problems


def _with_medians(
    result: Result,
    workload: Workload,
    runs: Sequence[dict[str, Any]],
    versions: dict[str, str],
    reference: list[list[int]] | None,
) -> Result:
    elapsed_s = statistics.median(run["elapsed_s"] for run in runs)
    num_equal = None
    if reference is not None:
        num_equal = sum(a == b for a, b in zip(reference, runs[0]["token_ids"], strict=True))
    return replace(
        result,
        num_runs=len(runs),
        elapsed_s=elapsed_s,
        tokens_per_s=sum(workload.output_lens) / elapsed_s,
        ttft_p50_s=statistics.median(statistics.median(run["ttft_s"]) for run in runs),
        peak_memory_bytes=max(run["peak_memory_bytes"] or 0 for run in runs) or None,
        num_equal=num_equal,
        versions=versions,
    )
