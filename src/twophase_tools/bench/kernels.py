"""`twophase bench kernels`: every Triton kernel against torch, as time, share of bandwidth and TFLOP/s.

Only the timer needs a GPU; cases and report are plain code that the tests run with a timer of their own.
"""

import gc
import subprocess
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from twophase.core.errors import BackendUnavailableError
from twophase_tools.bench.kernel_cases import FULL, OURS, QUICK, CaseTable, KernelCase, Variant
from twophase_tools.bench.machine import (
    MachineRecord,
    measure_copy_bandwidth,
    measure_matmul_rate,
    median_time_s,
    record_machine,
)

Timer = Callable[[Callable[[], object]], float]

COPY_BYTES = 2 * 1024**3
MATMUL_SIZE = 8192


@dataclass(frozen=True, slots=True)
class VariantResult:
    """One contender at one size.

    Attributes:
        elapsed_s: Seconds per call, or None with the reason in `not_run`.
        max_difference: Largest absolute difference from our output; None for ours, and where nothing is compared.
    """

    name: str
    elapsed_s: float | None
    not_run: str | None = None
    max_difference: float | None = None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One row: the work it takes and what each contender made of it, ours first."""

    kernel: str
    label: str
    num_bytes: int
    num_flops: int
    is_compute_bound: bool
    only_reads: bool
    variants: tuple[VariantResult, ...]

    @property
    def ours(self) -> VariantResult:
        return self.variants[0]

    @property
    def fastest_rival(self) -> VariantResult | None:
        timed = [variant for variant in self.variants[1:] if variant.elapsed_s is not None]
        return min(timed, key=lambda variant: variant.elapsed_s or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class KernelReport:
    """A whole run, with the roofs it is measured against: bytes/s of a copy and of reading alone, FLOP/s of a matrix
    product.

    Attributes:
        gpu_state: Driver, clocks, temperature and power limit as nvidia-smi gives them; None without it.
    """

    machine: MachineRecord
    dtype: str
    copy_bandwidth: float
    read_bandwidth: float
    matmul_rate: float
    gpu_state: str | None
    results: tuple[CaseResult, ...]

    def to_text(self) -> str:
        head = (
            f"{self.machine.to_text()}\n{self.gpu_state or 'no nvidia-smi: clocks unknown'}\n"
            f"{self.dtype}; copy {self.copy_bandwidth / 1e12:.2f} TB/s, read {self.read_bandwidth / 1e12:.2f} TB/s, "
            f"matrix product {self.matmul_rate / 1e12:.0f} TFLOP/s (all measured); CUDA-graph replay, cold L2\n"
        )
        return "\n".join([head, _HEADER, *(line for result in self.results for line in self._lines(result))])

    def _lines(self, result: CaseResult) -> Iterable[str]:
        for variant in result.variants:
            case = f"{result.kernel} {result.label}" if variant is result.ours else ""
            if variant.elapsed_s is None:
                yield f"{case:<42} {variant.name:<16} not run: {variant.not_run}"
                continue
            ratio = variant.elapsed_s / result.ours.elapsed_s if result.ours.elapsed_s else float("nan")
            yield (
                f"{case:<42} {variant.name:<16} {variant.elapsed_s * 1e6:>10.1f} {ratio:>6.2f}x "
                f"{result.num_bytes / 1e6:>10.2f} {self.share_of_bandwidth(result, variant):>6.0%} "
                f"{result.num_flops / variant.elapsed_s / 1e12:>8.2f}"
                + ("" if variant.max_difference is None else f" {variant.max_difference:>8.1e}")
            )

    def share_of_bandwidth(self, result: CaseResult, variant: VariantResult) -> float:
        """The least bytes over the time taken, as a share of the measured bandwidth: of a copy, or of reading where a
        kernel does nothing else; 0 when not run."""
        roof = self.read_bandwidth if result.only_reads else self.copy_bandwidth
        return result.num_bytes / variant.elapsed_s / roof if variant.elapsed_s else 0.0

    def to_dict(self) -> dict[str, object]:
        return {"status": "measured", **asdict(self)}

    def plot(self, path: Path) -> None:
        """One mark per contender and case: share of bandwidth; for prefill, of the matrix-product rate."""
        from matplotlib.figure import Figure

        by_memory = [result for result in self.results if not result.is_compute_bound]
        by_compute = [result for result in self.results if result.is_compute_bound]
        figure = Figure(figsize=(10, 2 + 0.3 * len(self.results)), layout="constrained")
        top, bottom = figure.subplots(2, 1, height_ratios=[len(by_memory) + 1, len(by_compute) + 1])
        names = list(dict.fromkeys(variant.name for result in self.results for variant in result.variants))
        for number, name in enumerate(names):
            is_ours = name == OURS
            style = {"s": 70, "marker": "D"} if is_ours else {"s": 24, "marker": "o"}
            for ax, results in ((top, by_memory), (bottom, by_compute)):
                rows, shares = self._dots(name, results)
                # Ours below the others' smaller dots, so that none hides another.
                ax.scatter(shares, rows, label=name, color=f"C{number}", zorder=2 if is_ours else 3, **style)
        for ax, results in ((top, by_memory), (bottom, by_compute)):
            ax.set_yticks(range(len(results)), [f"{r.kernel} {r.label}" for r in results], fontsize=7)
            ax.set(ylim=(len(results) - 0.5, -0.5), xlim=(0, None))
            ax.axvline(1, color="grey", linewidth=0.8)
            ax.grid(axis="x", alpha=0.3)
        top.set(xlabel="share of measured bandwidth", title=f"{_device_name(self.machine)}, {self.dtype}")
        bottom.set(xlabel="share of measured matrix-product rate")
        figure.legend(*top.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        figure.savefig(path, dpi=150)

    def _dots(self, name: str, results: list[CaseResult]) -> tuple[list[int], list[float]]:
        rows, shares = [], []
        for row, result in enumerate(results):
            for variant in result.variants:
                if variant.name == name and variant.elapsed_s:
                    rate = result.num_flops / variant.elapsed_s / self.matmul_rate
                    shares.append(rate if result.is_compute_bound else self.share_of_bandwidth(result, variant))
                    rows.append(row)
        return rows, shares


_HEADER = f"{'case':<42} {'who':<16} {'us':>10} {'/ours':>7} {'MB':>10} {'of bw':>6} {'TFLOP/s':>8} {'diff':>8}"


def _device_name(machine: MachineRecord) -> str:
    return machine.gpus[0].name if machine.gpus else machine.cpu


def why_not_here() -> str | None:
    """The reason why kernels cannot be timed on this machine, or None."""
    if not torch.cuda.is_available():
        return "needs CUDA"
    return None


def bench_kernels(quick: bool = False) -> KernelReport:
    """Measure every case on the current CUDA device.

    Raises:
        BackendUnavailableError: Triton cannot compile kernels in this process.
    """
    from twophase_kernels._triton import KernelsUnavailableError, mode
    from twophase_tools.bench.cuda_timer import ColdGraphTimer

    try:
        how = mode()
    except KernelsUnavailableError as error:
        raise BackendUnavailableError(f"bench kernels cannot run here: {error}") from error
    if how == "interpreted":
        raise BackendUnavailableError(
            "bench kernels times compiled kernels, but TRITON_INTERPRET is set: unset it and start again."
        )
    device, dtype = torch.device("cuda", torch.cuda.current_device()), torch.bfloat16
    table = CaseTable(QUICK if quick else FULL, dtype, device)
    return make_report(table, ColdGraphTimer(device), dtype, device)


def make_report(cases: Iterable[KernelCase], timer: Timer, dtype: torch.dtype, device: torch.device) -> KernelReport:
    """Measure `cases` with `timer`, and the machine's roofs."""
    on_gpu = device.type == "cuda"
    roofs_args = ({"num_bytes": COPY_BYTES}, {"size": MATMUL_SIZE}) if on_gpu else ({"num_bytes": 2**20}, {"size": 64})
    return KernelReport(
        machine=record_machine(),
        dtype=str(dtype).removeprefix("torch."),
        copy_bandwidth=measure_copy_bandwidth(device, **roofs_args[0]),
        read_bandwidth=measure_read_bandwidth(device, **roofs_args[0]),
        matmul_rate=measure_matmul_rate(device, dtype, **roofs_args[1]),
        gpu_state=gpu_state(),
        results=tuple(measure_case(case, timer) for case in cases),
    )


def measure_read_bandwidth(device: torch.device, num_bytes: int, repeats: int = 9) -> float:
    """Bytes per second of summing a large array, which only reads."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    return num_bytes / median_time_s(source.sum, device, repeats)


def gpu_state() -> str | None:
    """What decides about times and is not in the device's name, from nvidia-smi."""
    fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.limit"
    command = ["nvidia-smi", f"--query-gpu=index,{fields}", "--format=csv"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def measure_case(case: KernelCase, timer: Timer) -> CaseResult:
    """Time every contender. One that fails (not supported, out of memory) is reported with its reason."""
    # All cases compile one FlexAttention: after eight shapes torch would stop compiling it, and say so in a warning.
    torch.compiler.reset()
    results = _measure_variants(case, timer)
    gc.collect()  # its inputs were several GiB, and the next case needs the memory
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    work = case.work
    return CaseResult(
        case.kernel, case.label, work.num_bytes, work.num_flops, case.is_compute_bound, case.only_reads, results
    )


def _measure_variants(case: KernelCase, timer: Timer) -> tuple[VariantResult, ...]:
    try:
        variants = case.make_variants()
    except RuntimeError as error:  # no room for the inputs
        return (VariantResult(OURS, None, _reason(error)),)
    expected = None
    results = []
    for name, variant in variants.items():
        result, out = _measure_variant(name, variant, timer, expected)
        results.append(result)
        if name == OURS:
            expected = out
    return tuple(results)


def _measure_variant(
    name: str, variant: Variant, timer: Timer, expected: torch.Tensor | None
) -> tuple[VariantResult, torch.Tensor | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SDPA explains at length why a backend was not chosen; the error says enough
        try:
            out = variant()
            elapsed_s = timer(variant)
        except Exception as error:  # torch.compile and the drivers raise all sorts; one rival must not end the run
            return VariantResult(name, None, _reason(error)), None
    if not elapsed_s > 0:
        return VariantResult(name, None, "too short to be told from the noise of the timer"), out
    difference = None
    if expected is not None and out is not None:
        difference = (out.float() - expected.float()).abs().max().item()
    return VariantResult(name, elapsed_s, max_difference=difference), out


def _reason(error: Exception) -> str:
    """The first sentence of what it says."""
    sentence = str(error).strip().partition("\n")[0].partition(". ")[0]
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__
