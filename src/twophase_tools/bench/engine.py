"""`twophase bench engine`: this engine against `transformers.generate`, vLLM and llama.cpp, in turns."""

import statistics
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from twophase.core.errors import ConfigError
from twophase_tools.bench.contenders import CONTENDERS, Contender, PeerRecord, Run, Setup
from twophase_tools.bench.engine_report import ContenderResult, EngineReport, WorkloadResult
from twophase_tools.bench.entries import ENTRIES, PLAIN, Entry, entries, open_contender, setup_of
from twophase_tools.bench.machine import record_machine
from twophase_tools.bench.memory import peak_memory_bytes
from twophase_tools.bench.peers.contender import Peers
from twophase_tools.bench.peers.process import NotRunError, PeerFailedError
from twophase_tools.bench.workload import Workload, engine_workloads

# A rival this much slower than the fastest one in the first round does not run again: it would only cost time.
HOPELESS = 1.5
PEER_LIMIT_S = 900

NOTES = (
    "Ratios are the fastest rival's median time over our fastest. All contenders of a table have the same weights and",
    "threads, run in turns, generate greedily and ignore end-of-text; tokens/s counts requested tokens only.",
    "In 8 and 4 bits each engine has them in a format of its own, of which speed and memory are compared, not quality:",
    "W8A8 and W4A16 leave the output layer in bf16, Q8_0 and Q4_1 have it in 8 bits.",
    "'one batch' pads prompts on the left and generates to the longest output; its surplus tokens are discarded.",
    "'one by one' serves the requests in order, and each one's TTFT counts from the common start.",
    f"A rival more than {HOPELESS}x slower than the fastest in the first round is not run again.",
    "vLLM and llama.cpp get all requests at once, in processes of their own, where they are timed.",
    "Peak memory: CPU, resident beyond the imports, in a process of its own; CUDA, allocated by torch.",
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all tables share."""

    peers: Peers
    vocab_size: int
    repeats: int
    quick: bool
    say: Say


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
    peer_limit_s: int | float = PEER_LIMIT_S,
    say: Say = lambda line: None,
) -> EngineReport:
    """Run both workloads and measure every contender's memory; `say` hears what is being done.

    Args:
        weights: Names of `ENTRIES`, two tables each; none: plain weights in `dtype`.
        pythons: Peer -> an interpreter that has it; peers without one are reported as not run.
        peer_limit_s: How long a peer may take to load a model, and for each run.

    Raises:
        ConfigError: An option that cannot work.
        ModelFolderError, BackendUnavailableError: As `LLM`.
    """
    if repeats < 1 or (num_threads is not None and num_threads < 1):
        raise ConfigError(f"--repeats and --threads must be at least 1, got {repeats} and {num_threads}.")
    if unknown := [name for name in weights if name not in ENTRIES]:
        raise ConfigError(f"--weights must be names of {', '.join(ENTRIES)}; got {', '.join(unknown)}.")
    if weights and dtype != "auto":
        raise ConfigError(f"--weights says what is computed in, so --dtype {dtype} cannot be given with it.")
    num_threads = num_threads or torch.get_num_threads()
    shared, vocab_size = resolve_setup(model, device, dtype, backend, num_threads)
    results = []
    with tempfile.TemporaryDirectory(prefix="twophase-bench-") as workshop:
        peers = Peers(dict(pythons or {}), Path(workshop), peer_limit_s)
        plan = _Plan(peers, vocab_size, 1 if quick else repeats, quick, say)
        for name in weights or (PLAIN[shared.dtype],):
            setup, _ = resolve_setup(model, device, ENTRIES[name][0].dtype, backend, num_threads)
            for workload in engine_workloads(vocab_size, quick).values():
                results.append(_bench_workload(name, workload, setup, plan))
    return EngineReport(record_machine(), model, shared.device, num_threads, tuple(results), NOTES)


def resolve_setup(model: str, device: str, dtype: str, backend: str, num_threads: int) -> tuple[Setup, int]:
    """What 'auto' stands for here, and the model's vocabulary size."""
    from twophase.model.config import load_config
    from twophase.model.llama import model_backend
    from twophase.model.machine import make_backend, resolve_device, resolve_dtype
    from twophase_features.model_store.prepare import resolve_model

    folder = resolve_model(model)
    config = load_config(folder)
    torch_device = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, config, torch_device)
    make = partial(make_backend, backend, device=torch_device, dtype=torch_dtype, block_size=16)
    attention = model_backend(config, make)
    dtype_name = str(torch_dtype).removeprefix("torch.")
    return Setup(str(folder), str(torch_device), dtype_name, attention.name, num_threads), config.vocab_size


def _bench_workload(weights: str, workload: Workload, setup: Setup, plan: _Plan) -> WorkloadResult:
    def say(line: str) -> None:
        plan.say(f"{workload.name}, {weights}: {line}")

    lineup = {entry.name: entry for entry in entries(weights, workload)}
    with ExitStack() as opened:
        contenders, absent = _open_all(lineup, workload, setup, plan.peers, opened, say)
        ours = [name for name in contenders if lineup[name].is_ours]
        runs, failed = take_turns(contenders, ours, workload, plan.repeats, say)
        records = {name: contender.peer_record() for name, contender in contenders.items()}
    contenders.clear()  # their weights should not stand beside the children's
    peaks = {}
    for name, of_name in runs.items():
        peaks[name] = max(run.peak_memory_bytes or 0 for run in of_name) or None
        if lineup[name].who in CONTENDERS:
            say(f"memory of {name}")
            alone = setup_of(lineup[name], setup)
            peaks[name] = peak_memory_bytes(lineup[name].who, alone, workload.name, plan.vocab_size, plan.quick)
    results = [medians(name, workload, runs[name], peaks[name], records[name]) for name in runs]
    equal = count_equal(runs, ours) if setup.dtype == "float32" else {}
    return summarise(workload, weights, setup.backend, results, ours, absent | failed, equal)


def _open_all(
    lineup: Mapping[str, Entry], workload: Workload, setup: Setup, peers: Peers, opened: ExitStack, say: Say
) -> tuple[dict[str, Contender], dict[str, str]]:
    """Everybody who can take part, closed with `opened`, and why the others cannot."""
    contenders, absent = {}, {}
    for name, entry in lineup.items():
        say(f"loading {name}")
        try:
            contenders[name] = open_contender(entry, setup, workload, peers)
        except NotRunError as error:
            absent[name] = f"not run: {error}"
        except PeerFailedError as error:
            absent[name] = f"failed: {error}"
        else:
            opened.callback(contenders[name].close)
    return contenders, absent


def take_turns(
    contenders: Mapping[str, Contender], ours: Collection[str], workload: Workload, repeats: int, say: Say
) -> tuple[dict[str, list[Run]], dict[str, str]]:
    """Everybody's runs, and 'failed: ...' of each peer that did not come through, whose runs do not count.

    Each round runs all of ours, and the rivals that are still in the race.
    """
    warm_up = Workload("warm-up", workload.prompts[:2], (2,) * len(workload.prompts[:2]))
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    failed: dict[str, str] = {}

    def run(name: str, work: Workload) -> Run | None:
        try:
            return contenders[name].run(work)
        except PeerFailedError as error:
            failed[name] = f"failed: {error}"
            del runs[name]
            say(f"{name} {failed[name]}")
            return None

    for name in contenders:
        run(name, warm_up)
    for repeat in range(repeats):
        for name in _racing(runs, ours):
            # Said when done, with the time: a run of many minutes that is cut short should not lose everything.
            if done := run(name, workload):
                say(f"round {repeat + 1} of {repeats}, {name}: {done.elapsed_s:.2f} s")
                runs[name].append(done)
    return runs, failed


def _racing(runs: Mapping[str, Sequence[Run]], ours: Collection[str]) -> list[str]:
    """Who runs in the next round: in the first everybody, then all but the hopeless."""
    first_s = {name: of_name[0].elapsed_s for name, of_name in runs.items() if of_name and name not in ours}
    limit_s = HOPELESS * min(first_s.values(), default=0.0)
    return [name for name in runs if name not in first_s or first_s[name] <= limit_s]


def count_equal(runs: Mapping[str, Sequence[Run]], ours: Sequence[str]) -> dict[str, int]:
    """Rival -> requests that got the same tokens as from our first contender."""
    if not ours:
        return {}
    reference = runs[ours[0]][0].token_ids
    return {
        name: sum(a == b for a, b in zip(reference, of_name[0].token_ids, strict=True))
        for name, of_name in runs.items()
        if name not in ours
    }


def summarise(
    workload: Workload,
    weights: str,
    backend: str,
    results: Sequence[ContenderResult],
    ours: Collection[str],
    absent: Mapping[str, str],
    num_equal: Mapping[str, int],
) -> WorkloadResult:
    """The table: ours first, and the ratio of the fastest on either side."""
    own = [result for result in results if result.name in ours]
    rivals = [result for result in results if result.name not in ours]
    fastest = min(rivals, key=lambda result: result.elapsed_s, default=None)
    return WorkloadResult(
        name=workload.name,
        weights=weights,
        backend=backend,
        num_requests=len(workload.prompts),
        num_input_tokens=workload.num_input_tokens,
        num_output_tokens=workload.num_output_tokens,
        contenders=(*own, *rivals),
        absent=dict(absent),
        fastest_rival=None if fastest is None else fastest.name,
        ratio=fastest.elapsed_s / min(result.elapsed_s for result in own) if fastest and own else None,
        num_equal=dict(num_equal),
    )


def medians(
    name: str, workload: Workload, runs: Sequence[Run], peak_bytes: int | None, peer: PeerRecord | None = None
) -> ContenderResult:
    elapsed_s = statistics.median(run.elapsed_s for run in runs)
    return ContenderResult(
        name=name,
        num_runs=len(runs),
        elapsed_s=elapsed_s,
        tokens_per_s=workload.num_output_tokens / elapsed_s,
        ttft_p50_s=statistics.median(statistics.median(run.ttft_s) for run in runs),
        peak_memory_bytes=peak_bytes,
        peer=peer,
    )
