"""`twophase bench engine`: this engine against `transformers.generate`, vLLM and llama.cpp, in turns."""

import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from twophase.core.errors import ConfigError
from twophase_tools.bench.machine import MachineRecord, record_machine
from twophase_tools.bench.peers.launches import BATCH, LLAMA_CPP, ONE_BY_ONE, OURS, VLLM, Setup, launch_of
from twophase_tools.bench.peers.process import NotRunError, PeerFailedError, PeerProcess
from twophase_tools.bench.turns import Say, in_turns, median_of

HOPELESS = 1.5  # a rival so much slower than the fastest in the first round does not run again: it would only cost time
LIMIT_S = 900  # for a contender to load a model, and for each run
MIB = 1024**2

NOTES = (
    "Ratios are the fastest rival's median time over our fastest. All contenders of a table have the same weights and",
    "threads, run in turns, each in a process of its own, which times it; they get all requests at once, generate",
    "greedily and ignore end-of-text; tokens/s counts requested tokens only.",
    "In 8 and 4 bits each engine has them in a format of its own, of which speed and memory are compared, not quality:",
    "W8A8 and W4A16 leave the output layer in bf16, Q8_0 and Q4_1 have it in 8 bits.",
    "'one batch' pads prompts on the left and generates to the longest output; its surplus tokens are discarded.",
    "'one by one' serves the requests in order, and each one's TTFT counts from the common start.",
    f"A rival more than {HOPELESS}x slower than the fastest in the first round is not run again.",
    "Peak memory: CPU, resident beyond the imports; CUDA, allocated by torch.",
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


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender in one form of the weights.

    Attributes:
        dtype: What it computes in.
        quantization: What linear layers are rounded to, in that engine's own words; None: they are plain.
    """

    who: str
    dtype: str
    quantization: str | None = None

    @property
    def name(self) -> str:
        return self.who if self.quantization is None else f"{self.who}, {self.quantization}"


def _plain(dtype: str) -> tuple[Entry, ...]:
    return tuple(Entry(who, dtype) for who in (OURS, BATCH, ONE_BY_ONE, VLLM, LLAMA_CPP))


# Who takes part with which weights: a line for each row of a table. transformers quantises only with another package.
ENTRIES: dict[str, tuple[Entry, ...]] = {
    "fp32": _plain("float32"),
    "fp16": _plain("float16"),
    "bf16": _plain("bfloat16"),
    "int8": (
        Entry(OURS, "bfloat16", "int8"),
        Entry(OURS, "bfloat16", "int8_dynamic"),
        Entry(VLLM, "bfloat16", "W8A8"),
        Entry(LLAMA_CPP, "bfloat16", "Q8_0"),
    ),
    "int4": (
        Entry(OURS, "bfloat16", "int4"),
        Entry(VLLM, "bfloat16", "W4A16"),
        Entry(LLAMA_CPP, "bfloat16", "Q4_1"),
    ),
}
PLAIN = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # by dtype


@dataclass(frozen=True, slots=True)
class ContenderResult:
    """Medians over `num_runs` runs.

    Attributes:
        ttft_p50_s: Median over requests of the time to first token.
        peak_memory_bytes: None where the system does not tell.
        num_equal: Requests whose greedy tokens equal those of our first; None where rounding makes the comparison
            meaningless (anything but float32).
    """

    name: str
    is_ours: bool
    num_runs: int
    elapsed_s: float
    tokens_per_s: float
    ttft_p50_s: float
    peak_memory_bytes: int | None
    num_equal: int | None
    versions: dict[str, str]

    @property
    def cells(self) -> tuple[str, str, str]:
        bytes_ = self.peak_memory_bytes
        memory = "not measured" if bytes_ is None else f"{bytes_ / MIB:,.0f} MiB"
        return f"{self.tokens_per_s:.1f}", f"{self.ttft_p50_s:.2f} s", memory


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """One workload with one form of the weights.

    Attributes:
        weights: 'fp32', 'int4' and so on.
        contenders: This engine's come first.
        absent: Name -> why there is no result: 'not run: ...' or 'failed: ...'.
        ratio: The fastest rival's median time over our fastest; None without rivals, or without us.
    """

    name: str
    weights: str
    num_requests: int
    num_input_tokens: int
    num_output_tokens: int
    contenders: tuple[ContenderResult, ...]
    absent: dict[str, str]
    ratio: float | None

    def to_line(self) -> str:
        ratio = "no ratio" if self.ratio is None else f"{self.ratio:.2f}x"
        equal = [f"{each.name} {each.num_equal}" for each in self.contenders if each.num_equal is not None]
        return (
            f"{ratio}  {self.name}, {self.weights}: {self.num_requests} requests, {self.num_input_tokens:,} prompt "
            f"tokens, {self.num_output_tokens:,} generated"
            + (f"; requests with our greedy tokens: {', '.join(equal)}" if equal else "")
        )


@dataclass(frozen=True, slots=True)
class EngineReport:
    """A whole run.

    Attributes:
        model: As it was named.
        backend: Of this engine's attention.
    """

    machine: MachineRecord
    model: str
    device: str
    backend: str
    num_threads: int
    results: tuple[WorkloadResult, ...]
    notes: tuple[str, ...] = NOTES

    def to_text(self) -> str:
        return "\n".join([*(result.to_line() for result in self.results), "", self.to_markdown(), "", *self.notes])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_markdown(self) -> str:
        """A row per contender and form of the weights, three columns per workload; below, what it was measured on."""
        names = list(dict.fromkeys(result.name for result in self.results))
        forms = list(dict.fromkeys(result.weights for result in self.results))
        rows: dict[tuple[str, str], dict[str, tuple[str, str, str]]] = {}
        versions: dict[str, dict[str, str]] = {}
        # The largest workload has all contenders, so it gives their order.
        for result in sorted(self.results, key=lambda result: (forms.index(result.weights), -result.num_requests)):
            for each in result.contenders:
                rows.setdefault((result.weights, each.name), {})[result.name] = each.cells
                versions.setdefault(each.name.partition(",")[0], each.versions)
            for name, why in result.absent.items():
                rows.setdefault((result.weights, name), {})[result.name] = (why.partition(":")[0], "", "")
        titles = [title for name in names for title in (f"{name}: tokens/s", "TTFT p50", "peak memory")]
        lines = [
            ("weights", "", *titles),
            ("---", "---", *["---:"] * len(titles)),
            *((*key, *(cell for name in names for cell in row.get(name, ("",) * 3))) for key, row in rows.items()),
        ]
        reasons = dict.fromkeys(f"- {name}: {why}" for result in self.results for name, why in result.absent.items())
        used = [f"{self.model} on {self.device}, attention {self.backend}, {self.num_threads} threads"]
        used += [f"  {who}: {', '.join(f'{p} {v}' for p, v in of_one.items())}" for who, of_one in versions.items()]
        table = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([*table, "", *reasons, *[""] * bool(reasons), *used, self.machine.to_text()])


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
    pythons: Mapping[str, str] | None = None,
    say: Say = lambda line: None,
) -> EngineReport:
    """Run both workloads; `say` hears what is being done.

    Args:
        weights: Names of `ENTRIES`, two tables each; none: plain weights in `dtype`.
        pythons: Other people's engine -> an interpreter that has it; one without is reported as not run.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError, BackendUnavailableError: As `LLM`.
    """
    if unknown := [name for name in weights if name not in ENTRIES]:
        raise ConfigError(f"--weights must be names of {', '.join(ENTRIES)}; got {', '.join(unknown)}.")
    if weights and dtype != "auto":
        raise ConfigError(f"--weights says what is computed in, so --dtype {dtype} cannot be given with it.")
    num_threads = num_threads or torch.get_num_threads()
    results = []
    with tempfile.TemporaryDirectory(prefix="twophase-bench-") as workshop:
        folder, device, dtype, backend, vocab_size = _resolve(model, device, dtype, backend)
        setup = Setup(folder, device, dtype, backend, num_threads, dict(pythons or {}), Path(workshop))
        for name in weights or (PLAIN[setup.dtype],):
            for workload in workloads(vocab_size, quick):
                results.append(_bench_workload(name, workload, setup, 1 if quick else repeats, say))
    return EngineReport(record_machine(), model, setup.device, setup.backend, num_threads, tuple(results))


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


def _bench_workload(weights: str, workload: Workload, setup: Setup, repeats: int, say: Say) -> WorkloadResult:
    # For one request, a batch and one by one are the same.
    entries = [each for each in ENTRIES[weights] if len(workload.prompts) > 1 or each.who != BATCH]
    absent: dict[str, str] = {}
    contenders: dict[str, PeerProcess] = {}
    with ExitStack() as opened:
        for entry in entries:
            say(f"{workload.name}, {weights}: loading {entry.name}")
            its_setup = replace(setup, dtype=entry.dtype, quantization=entry.quantization)
            try:
                contenders[entry.name] = PeerProcess(launch_of(entry.who, its_setup, workload.lengths), LIMIT_S)
                opened.callback(contenders[entry.name].close)
            except NotRunError as error:
                absent[entry.name] = f"not run: {error}"
            except PeerFailedError as error:
                absent[entry.name] = f"failed: {error}"
        ours = [entry.name for entry in entries if entry.who == OURS and entry.name in contenders]
        runs = take_turns(contenders, ours, workload, repeats, absent, lambda line: say(f"{workload.name}, {line}"))
    ours = [name for name in ours if name in runs]
    reference = runs[ours[0]][0]["token_ids"] if ours and weights == "fp32" else None
    results = [
        _medians(name, name in ours, workload, of_name, contenders[name].versions, reference)
        for name, of_name in runs.items()
    ]
    results.sort(key=lambda result: not result.is_ours)
    own_s, rival_s = ([each.elapsed_s for each in results if each.is_ours == side] for side in (True, False))
    return WorkloadResult(
        name=workload.name,
        weights=weights,
        num_requests=len(workload.prompts),
        num_input_tokens=sum(map(len, workload.prompts)),
        num_output_tokens=sum(workload.output_lens),
        contenders=tuple(results),
        absent=absent,
        ratio=min(rival_s) / min(own_s) if own_s and rival_s else None,
    )


def take_turns(
    contenders: Mapping[str, PeerProcess],
    ours: Sequence[str],
    workload: Workload,
    repeats: int,
    absent: dict[str, str],
    say: Say,
) -> dict[str, list[dict[str, Any]]]:
    """Everybody's runs. Who does not come through goes into `absent`, and its runs do not count.

    Each round runs all of ours, and the rivals that are still in the race.
    """

    def way(name: str, number: int) -> dict[str, Any]:
        prompts, lengths = workload.prompts, workload.output_lens
        if number == 0:
            prompts, lengths = prompts[:2], (2,) * len(prompts[:2])
        try:
            answer = contenders[name].run(prompts, lengths)
        except PeerFailedError as error:
            absent[name] = f"failed: {error}"
            say(f"{name} {absent[name]}")
            return {}
        if number:
            # Said when done, with the time: a run of many minutes that is cut short should not lose everything.
            say(f"round {number} of {repeats}, {name}: {answer['elapsed_s']:.2f} s")
        return answer

    def racing(found: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
        """In the first round everybody, then all but the hopeless."""
        here = [name for name in found if name not in absent]
        first_s = {name: found[name][0]["elapsed_s"] for name in here if found[name] and name not in ours}
        limit_s = HOPELESS * min(first_s.values(), default=0.0)
        return [name for name in here if first_s.get(name, 0.0) <= limit_s]

    found = in_turns({name: partial(way, name) for name in contenders}, repeats, racing)
    return {name: runs for name, runs in found.items() if name not in absent}


def _medians(
    name: str,
    is_ours: bool,
    workload: Workload,
    runs: Sequence[dict[str, Any]],
    versions: dict[str, str],
    reference: list[list[int]] | None,
) -> ContenderResult:
    elapsed_s = median_of(runs, lambda run: run["elapsed_s"])
    num_equal = None
    if reference is not None and not is_ours:
        num_equal = sum(a == b for a, b in zip(reference, runs[0]["token_ids"], strict=True))
    return ContenderResult(
        name=name,
        is_ours=is_ours,
        num_runs=len(runs),
        elapsed_s=elapsed_s,
        tokens_per_s=sum(workload.output_lens) / elapsed_s,
        ttft_p50_s=median_of(runs, lambda run: statistics.median(run["ttft_s"])),
        peak_memory_bytes=max(run["peak_memory_bytes"] or 0 for run in runs) or None,
        num_equal=num_equal,
        versions=versions,
    )
