"""`twophase bench kernels`: every Triton kernel against torch, as time, share of bandwidth and TFLOP/s.

A contender is compared with ours before it is timed: one that does other work gets no time. Only the timer needs a GPU;
a dry run does everything else, with tiny shapes, on any machine.
"""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from twophase.core.errors import BackendUnavailableError
from twophase_tools.bench.kernel_cases import FULL, QUICK, CaseTable, KernelCase
from twophase_tools.bench.kernel_variants import OURS, MakeVariant, Variant, difference
from twophase_tools.bench.machine import (
    gpu_clocks,
    measure_copy_bandwidth,
    measure_matmul_rate,
    measure_read_bandwidth,
)
from twophase_tools.bench.report import table
from twophase_tools.bench.turns import Say

Timer = Callable[[Callable[[], object]], float]

COPY_BYTES = 2 * 1024**3
MATMUL_SIZE = 8192
COLUMNS = ("case", "who", "diff:", "us:", "/ours:", "MB:", "of bw:", "TFLOP/s:", "")

# timed: compared where there is something to compare with, and timed. untimed: the same, without a time. unavailable:
# a contender that cannot run here, or no room. wrong: it computes something else. failed: ours, of which nothing came.
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

    def __str__(self) -> str:
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
        if self.ours.status in ("timed", "untimed") and all(each.difference is None for each in self.variants):
            yield f"{name}: nothing to compare with"

    def rows(self, roofs: Roofs | None) -> Iterator[tuple[str, ...]]:
        """Of `COLUMNS`."""
        for variant in self.variants:
            case = f"{self.kernel} {self.label}" if variant is self.ours else ""
            apart = "" if variant.difference is None else f"{variant.difference:.1e}"
            numbers = ("",) * 5
            if variant.elapsed_s is not None and roofs is not None:
                bandwidth = roofs.read_bandwidth if self.only_reads else roofs.copy_bandwidth
                numbers = (
                    f"{variant.elapsed_s * 1e6:.1f}",
                    f"{variant.elapsed_s / self.ours.elapsed_s:.2f}x" if self.ours.elapsed_s else "",
                    f"{self.num_bytes / 1e6:.2f}",
                    f"{self.num_bytes / variant.elapsed_s / bandwidth:.0%}",
                    f"{self.num_flops / variant.elapsed_s / 1e12:.2f}",
                )
            yield case, variant.name, apart, *numbers, variant.not_run or ""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """A whole run.

    Attributes:
        roofs: None in a dry run.
        before, after: `gpu_clocks` after measuring the roofs, and after the last case.
    """

    dtype: str
    roofs: Roofs | None
    before: dict[str, str] | None
    after: dict[str, str] | None
    results: tuple[CaseResult, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """Answers that differ, kernels of ours that broke, and cases in which nothing was compared."""
        return tuple(problem for result in self.results for problem in result.problems)

    def to_text(self) -> str:
        head = []
        for when, state in (("before", self.before), ("after", self.after)):
            told = "clocks unknown" if state is None else ", ".join(f"{name} {value}" for name, value in state.items())
            head.append(f"{when}: {told}")
        head.append(f"{self.dtype}; {self.roofs or 'dry run, tiny shapes'}\n")
        return "\n".join([*head, table(COLUMNS, (row for result in self.results for row in result.rows(self.roofs)))])

    def to_dict(self) -> dict[str, object]:
        status = "dry run" if self.roofs is None else "measured"
        return {"status": status, "problems": self.problems, **asdict(self)}


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
    return KernelReport(name, roofs, before, gpu_clocks(device), tuple(results))


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
            return VariantResult(name, "wrong", not_run=reason, difference=apart), found
        return _time(name, variant, timer, apart), found
    except Exception as error:  # compilers and drivers raise all sorts; one contender must not end the run
        return _not_run(name, error), None


def _time(name: str, variant: Variant, timer: Timer | None, apart: float | None) -> VariantResult:
    reason = "compared only"
    if variant.is_timed and timer is None:
        reason = "dry run" if torch.cuda.is_available() else "not run here: needs CUDA"
    elif variant.is_timed and timer is not None:
        if (elapsed_s := timer(variant.call)) > 0:
            return VariantResult(name, "timed", elapsed_s, difference=apart)
        reason = "not timed: too short to be told from the noise of the timer"
    return VariantResult(name, "untimed", not_run=reason, difference=apart)


def _not_run(name: str, error: Exception) -> VariantResult:
    is_fault = name == OURS and not isinstance(error, torch.OutOfMemoryError)
    sentence = str(error).strip().partition("\n")[0].partition(". ")[0]
    reason = f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__
    return VariantResult(name, "failed" if is_fault else "unavailable", not_run=f"not run: {reason}")
