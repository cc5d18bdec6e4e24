"""What `bench engine` found: as numbers, as text, and as a table for a page."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from twophase_tools.bench.contenders import PeerRecord
from twophase_tools.bench.machine import MachineRecord

MIB = 1024**2
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class ContenderResult:
    """Medians over `num_runs` runs.

    Attributes:
        ttft_p50_s: Median over requests of the time to first token.
        peak_memory_bytes: Of one run in a process of its own; None where not measured.
        peer: Of a contender that has a process of its own.
    """

    name: str
    num_runs: int
    elapsed_s: float
    tokens_per_s: float
    ttft_p50_s: float
    peak_memory_bytes: int | None
    peer: PeerRecord | None = None

    @property
    def memory(self) -> str:
        return NOT_MEASURED if self.peak_memory_bytes is None else f"{self.peak_memory_bytes / MIB:,.0f} MiB"


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """One workload with one form of the weights.

    Attributes:
        weights: 'fp32', 'int4' and so on.
        backend: Of this engine's attention.
        contenders: This engine's come first.
        absent: Name -> why there is no result: 'not run: ...' or 'failed: ...'.
        fastest_rival: None without rivals.
        ratio: The fastest rival's median time over our fastest; None without rivals, or without us.
        num_equal: For each rival, requests whose greedy tokens equal those of our first; empty where rounding makes
            the comparison meaningless (anything but float32).
    """

    name: str
    weights: str
    backend: str
    num_requests: int
    num_input_tokens: int
    num_output_tokens: int
    contenders: tuple[ContenderResult, ...]
    absent: dict[str, str]
    fastest_rival: str | None
    ratio: float | None
    num_equal: dict[str, int]

    def to_lines(self) -> Iterator[str]:
        ratio = "no ratio" if self.ratio is None else f"{self.ratio:.2f}x"
        rival = "" if self.fastest_rival is None else f"; the fastest rival is {self.fastest_rival!r}"
        yield (
            f"{ratio}  {self.name}, {self.weights}: {self.num_requests} requests, {self.num_input_tokens:,} prompt "
            f"tokens, {self.num_output_tokens:,} generated{rival}"
        )
        head = f"{'seconds':>9} {'runs':>5} {'tokens/s':>9} {'TTFT p50':>9} {'peak memory':>12}"
        yield f"  {'':<26} {head}  greedy tokens"
        for result in self.contenders:
            num_equal = self.num_equal.get(result.name)
            equal = "" if num_equal is None else f"{num_equal} of {self.num_requests} equal to ours"
            yield (
                f"  {result.name:<26} {result.elapsed_s:>9.2f} {result.num_runs:>5} {result.tokens_per_s:>9.1f} "
                f"{result.ttft_p50_s:>8.2f}s {result.memory:>12}  {equal}"
            )
        for name, why in self.absent.items():
            yield f"  {name:<26} {why}"


@dataclass(frozen=True, slots=True)
class EngineReport:
    """A whole run.

    Attributes:
        model: As it was named.
    """

    machine: MachineRecord
    model: str
    device: str
    num_threads: int
    results: tuple[WorkloadResult, ...]
    notes: tuple[str, ...]

    def to_text(self) -> str:
        lines = [line for result in self.results for line in (*result.to_lines(), "")]
        return "\n".join([*lines, *self.notes, *self._waiting(), "", *self._used()])

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def to_markdown(self) -> str:
        """A row per contender and form of the weights, three columns per workload; below, what it was measured on."""
        workloads = list(dict.fromkeys(result.name for result in self.results))
        rows: dict[tuple[str, str], dict[str, tuple[str, str, str]]] = {}
        forms = list(dict.fromkeys(result.weights for result in self.results))
        # The largest workload has all contenders, so it gives their order.
        for result in sorted(self.results, key=lambda result: (forms.index(result.weights), -result.num_requests)):
            for each in result.contenders:
                cells = f"{each.tokens_per_s:.1f}", f"{each.ttft_p50_s:.2f} s", each.memory
                rows.setdefault((result.weights, each.name), {})[result.name] = cells
            for name, why in result.absent.items():
                rows.setdefault((result.weights, name), {})[result.name] = (why.partition(":")[0], "", "")
        titles = [title for name in workloads for title in (f"{name}: tokens/s", "TTFT p50", "peak memory")]
        lines = [
            ("weights", "", *titles),
            ("---", "---", *["---:"] * len(titles)),
            *((*key, *(cell for name in workloads for cell in row.get(name, ("",) * 3))) for key, row in rows.items()),
        ]
        table = [f"| {' | '.join(line)} |" for line in lines]
        reasons = dict.fromkeys(f"- {name}: {why}" for result in self.results for name, why in result.absent.items())
        return "\n".join([*table, "", *reasons, *[""] * bool(reasons), *self._used()])

    def _used(self) -> Iterator[str]:
        backends = ", ".join(sorted({result.backend for result in self.results}))
        yield f"{self.model} on {self.device}, attention {backends}, {self.num_threads} threads"
        for peer in {peer.name: peer for peer in self._peers()}.values():
            yield f"  {peer.name}: {', '.join(f'{name} {version}' for name, version in peer.versions.items())}"
        yield self.machine.to_text()

    def _waiting(self) -> Iterator[str]:
        if shares := [peer.waiting_cpu for peer in self._peers()]:
            yield f"A peer that waits while others run uses at most {max(shares):.1%} of a core (measured)."

    def _peers(self) -> list[PeerRecord]:
        return [each.peer for result in self.results for each in result.contenders if each.peer is not None]
