"""`twophase bench engine`: this engine against `transformers.generate`, in one process, in turns, medians reported."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from twophase.core.errors import ConfigError
from twophase_tools.bench.contenders import (
    Contender,
    Run,
    Setup,
    TransformersBatch,
    TransformersSequential,
    Twophase,
)
from twophase_tools.bench.machine import MachineRecord, record_machine
from twophase_tools.bench.memory import peak_memory_bytes
from twophase_tools.bench.workload import Workload, engine_workloads

# A rival this much slower than the fastest one in the first round does not run again: it would only cost time.
HOPELESS = 1.5
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ContenderResult:
    """Medians over `num_runs` runs.

    Attributes:
        ttft_p50_s: Median over requests of the time to first token.
        peak_memory_bytes: Of one run in a process of its own; None where not measured.
    """

    name: str
    num_runs: int
    elapsed_s: float
    tokens_per_s: float
    ttft_p50_s: float
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """One workload; `contenders[0]` is this engine.

    Attributes:
        num_equal: For each rival, requests whose greedy tokens equal ours; empty where rounding makes the comparison
            meaningless (anything but float32).
        ratio: The fastest rival's median time over ours.
    """

    name: str
    num_requests: int
    num_input_tokens: int
    num_output_tokens: int
    contenders: tuple[ContenderResult, ...]
    fastest_rival: str
    ratio: float
    num_equal: dict[str, int]

    def to_lines(self) -> Iterator[str]:
        yield (
            f"{self.ratio:.2f}x  {self.name}: {self.num_requests} requests, {self.num_input_tokens:,} prompt tokens, "
            f"{self.num_output_tokens:,} generated; the faster rival is {self.fastest_rival!r}"
        )
        head = f"{'seconds':>9} {'runs':>5} {'tokens/s':>9} {'TTFT p50':>9} {'peak memory':>12}"
        yield f"  {'':<26} {head}  greedy tokens"
        for result in self.contenders:
            peak = result.peak_memory_bytes
            memory = "not measured" if peak is None else f"{peak / MIB:,.0f} MiB"
            num_equal = self.num_equal.get(result.name)
            equal = "" if num_equal is None else f"{num_equal} of {self.num_requests} equal to ours"
            yield (
                f"  {result.name:<26} {result.elapsed_s:>9.2f} {result.num_runs:>5} {result.tokens_per_s:>9.1f} "
                f"{result.ttft_p50_s:>8.2f}s {memory:>12}  {equal}"
            )


@dataclass(frozen=True, slots=True)
class EngineReport:
    """A whole run."""

    machine: MachineRecord
    setup: Setup
    results: tuple[WorkloadResult, ...]
    notes: tuple[str, ...]

    def to_text(self) -> str:
        setup = self.setup
        lines = [line for result in self.results for line in (*result.to_lines(), "")]
        used = (
            f"{setup.folder}, {setup.dtype} on {setup.device}, attention {setup.backend}, {setup.num_threads} threads"
        )
        return "\n".join([*lines, *self.notes, "", used, self.machine.to_text()])

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


NOTES = (
    "Ratios are the faster rival's median time over ours. All contenders have the same weights, dtype and threads,",
    "run in turns in one process, generate greedily and ignore end-of-text; tokens/s counts requested tokens only.",
    "'one batch' pads prompts on the left and generates to the longest output; its surplus tokens are discarded.",
    "'one by one' serves the requests in order, and each one's TTFT counts from the common start.",
    f"A rival more than {HOPELESS}x slower than the other in the first round is not run again.",
    "Peak memory: CPU, resident beyond the imports, in a process of its own; CUDA, allocated by torch.",
)


def bench_engine(
    model: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    backend: str = "auto",
    num_threads: int | None = None,
    repeats: int = 3,
    quick: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> EngineReport:
    """Run both workloads and measure every contender's memory; `say` hears what is being done.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError, BackendUnavailableError: As `LLM`.
    """
    if repeats < 1 or (num_threads is not None and num_threads < 1):
        raise ConfigError(f"--repeats and --threads must be at least 1, got {repeats} and {num_threads}.")
    setup, vocab_size = resolve_setup(model, device, dtype, backend, num_threads or torch.get_num_threads())
    repeats = 1 if quick else repeats
    results = [
        _bench_workload(workload, setup, repeats, vocab_size, quick, say)
        for workload in engine_workloads(vocab_size, quick).values()
    ]
    return EngineReport(record_machine(), setup, tuple(results), NOTES)


def resolve_setup(model: str, device: str, dtype: str, backend: str, num_threads: int) -> tuple[Setup, int]:
    """What 'auto' stands for here, and the model's vocabulary size."""
    from twophase.attention.select import make_backend
    from twophase.model.config import load_config
    from twophase.model.llama import model_backend
    from twophase.model.load import resolve_device, resolve_dtype
    from twophase.model.prepare import resolve_model

    folder = resolve_model(model)
    config = load_config(folder)
    torch_device = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, config, torch_device)
    make = partial(make_backend, backend, device=torch_device, dtype=torch_dtype, block_size=16)
    attention = model_backend(config, make)
    dtype_name = str(torch_dtype).removeprefix("torch.")
    return Setup(str(folder), str(torch_device), dtype_name, attention.name, num_threads), config.vocab_size


def _bench_workload(
    workload: Workload, setup: Setup, repeats: int, vocab_size: int, quick: bool, say: Callable[[str], None]
) -> WorkloadResult:
    # For one request, a batch and one by one are the same.
    rivals = [TransformersSequential] if len(workload.prompts) == 1 else [TransformersBatch, TransformersSequential]
    contenders: list[Contender] = [Twophase(setup, workload), *(rival(setup, workload) for rival in rivals)]
    runs = take_turns(contenders, workload, repeats, say)
    del contenders  # their weights should not stand beside the children's
    peaks = {}
    for name in runs:
        say(f"{workload.name}: memory of {name}")
        peaks[name] = peak_memory_bytes(name, setup, workload.name, vocab_size, quick)
    return summarise(workload, runs, peaks, compare_tokens=setup.dtype == "float32")


def take_turns(
    contenders: Sequence[Contender], workload: Workload, repeats: int, say: Callable[[str], None]
) -> dict[str, list[Run]]:
    """Every contender's runs. Each round runs ours first, then the rivals that are still in the race."""
    warm_up = Workload("warm-up", workload.prompts[:2], (2,) * len(workload.prompts[:2]))
    for contender in contenders:
        contender.run(warm_up)
    runs: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
    racing = list(contenders)
    for repeat in range(repeats):
        for contender in racing:
            # Said when done, with the time: a run of many minutes that is cut short should not lose everything.
            run = contender.run(workload)
            say(f"{workload.name}: round {repeat + 1} of {repeats}, {contender.name}: {run.elapsed_s:.2f} s")
            runs[contender.name].append(run)
        fastest_s = min(runs[rival.name][0].elapsed_s for rival in contenders[1:])
        racing = [
            contender
            for contender in contenders
            if contender is contenders[0] or runs[contender.name][0].elapsed_s <= HOPELESS * fastest_s
        ]
    return runs


def summarise(
    workload: Workload, runs: dict[str, list[Run]], peaks: dict[str, int | None], *, compare_tokens: bool
) -> WorkloadResult:
    """Medians, the ratio to the fastest rival, and how many requests got the same tokens. The first name is ours."""
    results = [_medians(name, workload, of_name, peaks[name]) for name, of_name in runs.items()]
    ours, *rivals = results
    fastest = min(rivals, key=lambda result: result.elapsed_s)
    our_tokens = runs[ours.name][0].token_ids
    num_equal = {}
    if compare_tokens:
        for rival in rivals:
            rival_tokens = runs[rival.name][0].token_ids
            num_equal[rival.name] = sum(a == b for a, b in zip(our_tokens, rival_tokens, strict=True))
    return WorkloadResult(
        name=workload.name,
        num_requests=len(workload.prompts),
        num_input_tokens=workload.num_input_tokens,
        num_output_tokens=workload.num_output_tokens,
        contenders=tuple(results),
        fastest_rival=fastest.name,
        ratio=fastest.elapsed_s / ours.elapsed_s,
        num_equal=num_equal,
    )


def _medians(name: str, workload: Workload, runs: Sequence[Run], peak_bytes: int | None) -> ContenderResult:
    elapsed_s = statistics.median(run.elapsed_s for run in runs)
    return ContenderResult(
        name=name,
        num_runs=len(runs),
        elapsed_s=elapsed_s,
        tokens_per_s=workload.num_output_tokens / elapsed_s,
        ttft_p50_s=statistics.median(statistics.median(run.ttft_s) for run in runs),
        peak_memory_bytes=peak_bytes,
    )
