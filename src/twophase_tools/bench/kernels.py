"""`twophase bench kernels`: every Triton kernel against torch, as time, share of bandwidth and TFLOP/s.

A contender is compared with ours before it is timed: one that does other work gets no time. Only the timer needs a GPU;
a dry run does everything else, with tiny shapes, on any machine.
"""

import gc
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from twophase.core.errors import BackendUnavailableError
from twophase_tools.bench.kernel_cases import FULL, QUICK, CaseTable, KernelCase
from twophase_tools.bench.kernel_variants import OURS, MakeVariant, Variant, difference
from twophase_tools.bench.machine import (
    MachineRecord,
    gpu_clocks,
    measure_copy_bandwidth,
    measure_matmul_rate,
    measure_read_bandwidth,
    record_machine,
)
from twophase_tools.bench.turns import Say

Timer = Callable[[Callable[[], object]], float]

COPY_BYTES = 2 * 1024**3
MATMUL_SIZE = 8192
NEEDS_CUDA = "not run here: needs CUDA"

# What torch says, on a GPU and on a CPU, when a forced SDPA backend does not take these inputs.
NO_SUCH_BACKEND = "No available kernel", "No viable backend"

# timed: compared where there is something to compare with, and timed. untimed: the same, without a time. unavailable:
# not for this machine, or no room. wrong: it computes something else. failed: anything else.
Status = Literal["timed", "untimed", "unavailable", "wrong", "failed"]


@dataclass(frozen=True, slots=True)
class VariantResult:
    """One contender at one size.

    Attributes:
        elapsed_s: Seconds per call if status is 'timed', else None with the reason in `not_run`.
        difference: From our results, as `kernel_variants.difference` gives it; None for ours.
    """

    name: str
    status: Status
    elapsed_s: float | None = None
    not_run: str | None = None
    difference: float | None = None


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the machine can do, measured: bytes/s of a copy and of reading alone, FLOP/s of a matrix product."""

    copy_bandwidth: float
    read_bandwidth: float
    matmul_rate: float

    def to_text(self) -> str:
        return (
            f"copy {self.copy_bandwidth / 1e12:.2f} TB/s, read {self.read_bandwidth / 1e12:.2f} TB/s, "
            f"matrix product {self.matmul_rate / 1e12:.0f} TFLOP/s (all measured); CUDA-graph replay, cold L2"
        )


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One row: the work it takes and what each contender made of it, ours first."""

    kernel: str
    label: str
    num_bytes: int
    num_flops: int
    tolerance: float
    only_reads: bool
    variants: tuple[VariantResult, ...]

    @property
    def ours(self) -> VariantResult:
        return self.variants[0]

    @property
    def problems(self) -> Iterator[str]:
        """What makes this case's result worth nothing, or a contender's."""
        name = f"{self.kernel} {self.label}"
        for variant in self.variants:
            if variant.status in ("wrong", "failed"):
                yield f"{name}: {variant.name}: {variant.not_run}"
        if [v for v in self.variants if v.status in ("timed", "untimed", "wrong")] == [self.ours]:
            yield f"{name}: nothing to compare with"

    def to_lines(self, roofs: Roofs | None) -> Iterator[str]:
        for variant in self.variants:
            case = f"{self.kernel} {self.label}" if variant is self.ours else ""
            apart = "" if variant.difference is None else f"{variant.difference:.1e}"
            start = f"{case:<64} {variant.name:<31} {apart:>8}"
            if variant.elapsed_s is None or roofs is None:
                yield f"{start}  {variant.not_run}"
                continue
            ratio = variant.elapsed_s / self.ours.elapsed_s if self.ours.elapsed_s else float("nan")
            bandwidth = roofs.read_bandwidth if self.only_reads else roofs.copy_bandwidth
            share = self.num_bytes / variant.elapsed_s / bandwidth
            yield (
                f"{start} {variant.elapsed_s * 1e6:>10.1f} {ratio:>6.2f}x {self.num_bytes / 1e6:>10.2f} {share:>6.0%} "
                f"{self.num_flops / variant.elapsed_s / 1e12:>8.2f}"
            )


_HEADER = f"{'case':<64} {'who':<31} {'diff':>8} {'us':>10} {'/ours':>7} {'MB':>10} {'of bw':>6} {'TFLOP/s':>8}"


@dataclass(frozen=True, slots=True)
class KernelReport:
    """A whole run.

    Attributes:
        roofs: None in a dry run.
        before, after: `gpu_clocks` after measuring the roofs, and after the last case.
    """

    machine: MachineRecord
    dtype: str
    roofs: Roofs | None
    before: dict[str, str] | None
    after: dict[str, str] | None
    results: tuple[CaseResult, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """Comparisons that failed, contenders that broke, and cases in which nothing was compared."""
        return tuple(problem for result in self.results for problem in result.problems)

    def to_text(self) -> str:
        states = {"before": self.before, "after": self.after}
        told = [
            f"{when}: {', '.join(f'{name} {value}' for name, value in state.items())}"
            for when, state in states.items()
            if state is not None
        ]
        roofs = "dry run, tiny shapes" if self.roofs is None else self.roofs.to_text()
        head = [self.machine.to_text(), *(told or ["clocks unknown: nvidia-smi does not tell"])]
        head += [f"{self.dtype}; {roofs}\n", _HEADER]
        return "\n".join([*head, *(line for result in self.results for line in result.to_lines(self.roofs))])

    def to_dict(self) -> dict[str, object]:
        status = "dry run" if self.roofs is None else "measured"
        return {"status": status, "problems": self.problems, **asdict(self)}

    def save(self, folder: Path) -> Path:
        """Write `<date>-<gpu>.json` to a folder, and return its path. An older file of that name stays."""
        folder.mkdir(parents=True, exist_ok=True)
        device = self.machine.gpus[0].name if self.machine.gpus else self.machine.cpu
        words = "".join(char if char.isalnum() else " " for char in device.lower()).split()
        name = "-".join([self.machine.date_utc[:10], *words])
        path, number = folder / f"{name}.json", 1
        while path.exists():
            number += 1
            path = folder / f"{name}-{number}.json"
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        return path


def bench_kernels(quick: bool = False, say: Say = lambda line: None) -> KernelReport:
    """Measure every case on the current CUDA device; `say` gets the name of each before it begins.

    Raises:
        BackendUnavailableError: Triton cannot compile kernels in this process.
    """
    from twophase_kernels._triton import MEANING, reason
    from twophase_tools.bench.cuda_timer import ColdGraphTimer

    if (how := _how_kernels_run()) != "cuda":
        raise BackendUnavailableError(
            f"bench kernels times kernels compiled for a GPU; here they are {MEANING[how]}, {reason()}."
        )
    device, dtype = torch.device("cuda", torch.cuda.current_device()), torch.bfloat16
    return make_report(CaseTable(QUICK if quick else FULL, dtype, device), ColdGraphTimer(device), dtype, device, say)


def dry_run() -> KernelReport:
    """Everything but the times, with tiny shapes. Without a GPU kernels run as `twophase_kernels.choice` has it, and
    what torch would compile runs as it stands.

    Raises:
        BackendUnavailableError: Triton cannot run kernels in this process.
    """
    if _how_kernels_run() != "cuda":  # perhaps the interpreter, which computes garbage in bfloat16
        table = CaseTable(QUICK, torch.float32, torch.device("cpu"), may_compile=False)
    else:
        table = CaseTable(QUICK, torch.bfloat16, torch.device("cuda", torch.cuda.current_device()))
    return make_report(table, None, table.dtype, table.device)


def _how_kernels_run() -> Literal["cuda", "cpu", "interpreted", "emulated"]:
    from twophase_kernels._triton import KernelsUnavailableError, mode

    try:
        return mode()
    except KernelsUnavailableError as error:
        raise BackendUnavailableError(f"bench kernels cannot run here: {error}") from error


def make_report(
    cases: Iterable[KernelCase],
    timer: Timer | None,
    dtype: torch.dtype,
    device: torch.device,
    say: Say = lambda line: None,
) -> KernelReport:
    """Compare the contenders of `cases`, and measure them and the machine's roofs if there is a timer."""
    roofs = None if timer is None else measure_roofs(device, dtype)
    before = gpu_clocks(device)  # by now it is warm
    results = []
    for case in cases:
        say(f"{case.kernel} {case.label}")
        results.append(measure_case(case, timer))
    name = str(dtype).removeprefix("torch.")
    return KernelReport(record_machine(), name, roofs, before, gpu_clocks(device), tuple(results))


def measure_roofs(device: torch.device, dtype: torch.dtype) -> Roofs:
    num_bytes, size = (COPY_BYTES, MATMUL_SIZE) if device.type == "cuda" else (2**20, 64)
    copy, read = measure_copy_bandwidth(device, num_bytes), measure_read_bandwidth(device, num_bytes)
    return Roofs(copy, read, measure_matmul_rate(device, dtype, size))


def measure_case(case: KernelCase, timer: Timer | None) -> CaseResult:
    """Compare and time every contender. One that cannot run is reported with its reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an SDPA backend that is not available has six of them
        # All cases compile one FlexAttention: after eight shapes torch would stop compiling it.
        torch.compiler.reset()
        results = _measure_variants(case, timer)
    gc.collect()  # its inputs were several GiB, and the next case needs the memory
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return CaseResult(
        case.kernel, case.label, case.work.num_bytes, case.work.num_flops, case.tolerance, case.only_reads, results
    )


def _measure_variants(case: KernelCase, timer: Timer | None) -> tuple[VariantResult, ...]:
    try:
        variants = case.make_variants()
    except RuntimeError as error:  # no room for the inputs
        return (_not_run(OURS, error),)
    expected: tuple[torch.Tensor, ...] | None = None
    results = []
    for name, make in variants.items():
        result, found = _measure_variant(name, make, timer, expected, case.tolerance)
        results.append(result)
        if name == OURS:
            expected = found
    return tuple(results)


def _measure_variant(
    name: str, make: MakeVariant, timer: Timer | None, expected: tuple[torch.Tensor, ...] | None, tolerance: float
) -> tuple[VariantResult, tuple[torch.Tensor, ...] | None]:
    """Its result, and copies of what the first call gave (later calls may write over it)."""
    try:
        variant = make()
        found = tuple(tensor.clone() for tensor in variant.results(variant.call()))
        apart = None if expected is None else difference(found, expected)
        if apart is not None and not apart <= tolerance:
            reason = f"not timed: it computes something else (allowed {tolerance:.0e})"
            finite = apart if math.isfinite(apart) else None  # JSON knows no infinity
            return VariantResult(name, "wrong", not_run=reason, difference=finite), found
        return _time(name, variant, timer, apart), found
    except Exception as error:  # compilers and drivers raise all sorts; one contender must not end the run
        return _not_run(name, error), None


def _time(name: str, variant: Variant, timer: Timer | None, apart: float | None) -> VariantResult:
    if not variant.is_timed:
        return VariantResult(name, "untimed", not_run="compared only", difference=apart)
    if timer is None:
        reason = "dry run" if torch.cuda.is_available() else NEEDS_CUDA
        return VariantResult(name, "untimed", not_run=reason, difference=apart)
    elapsed_s = timer(variant.call)
    if not elapsed_s > 0:
        reason = "not timed: too short to be told from the noise of the timer"
        return VariantResult(name, "untimed", not_run=reason, difference=apart)
    return VariantResult(name, "timed", elapsed_s, difference=apart)


def _not_run(name: str, error: Exception) -> VariantResult:
    is_unavailable = isinstance(error, (torch.OutOfMemoryError, NotImplementedError)) or str(error).startswith(
        NO_SUCH_BACKEND
    )
    sentence = str(error).strip().partition("\n")[0].partition(". ")[0]
    reason = f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__
    return VariantResult(name, "unavailable" if is_unavailable else "failed", not_run=f"not run: {reason}")
