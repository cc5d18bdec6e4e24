"""The table of a profile: the share of each phase, the operators that take longest, and Python's part."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from twophase_tools.bench.machine import MachineRecord
from twophase_tools.profiling.ranges import STEP
from twophase_tools.profiling.steps import StepShape
from twophase_tools.profiling.tree import Node, Trees

TOP = 10
BETWEEN = "between"  # of a range: what lies between the ranges inside it


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """A range, all of its kind together, per step.

    Attributes:
        path: Names from 'step' down to it; 'between' at the end: what its other ranges leave over.
        calls: How often per step.
        total_s: Seconds per step.
        share: Of the step.
        python_s: Seconds per step outside of operators.
    """

    path: tuple[str, ...]
    calls: float
    total_s: float
    share: float
    python_s: float


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """An operator, or a kernel of a GPU, without the operators inside it, per step."""

    name: str
    calls: float
    own_s: float
    share: float


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Where the time of a step went; all times are means over the steps.

    Attributes:
        phases: Depth first; the children of each range sum up to it.
        operators: Of the CPU, the longest first.
        kernels: Of a GPU, by name with seconds per step, the longest first; () without one.
    """

    shape: StepShape
    num_steps: int
    step_s: float
    python_s: float
    phases: tuple[PhaseTime, ...]
    operators: tuple[OperatorTime, ...]
    kernels: tuple[tuple[str, float], ...]
    file: str
    engine: dict[str, str]
    machine: MachineRecord

    @classmethod
    def of(
        cls, trees: Trees, shape: StepShape, file: str, engine: dict[str, str], machine: MachineRecord
    ) -> "ProfileReport":
        """Summarise at least one step."""
        num_steps, whole_us = len(trees.steps), sum(step.duration_us for step in trees.steps)
        phases = _phases(trees.steps)
        kernels = sorted(trees.kernels_us.items(), key=lambda each: -each[1])
        return cls(
            shape=shape,
            num_steps=num_steps,
            step_s=whole_us / 1e6 / num_steps,
            python_s=phases[0].python_s,
            phases=phases,
            operators=_operators(trees.steps),
            kernels=tuple((name, time_us / 1e6 / num_steps) for name, time_us in kernels[:TOP]),
            file=file,
            engine=engine,
            machine=machine,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        shape = self.shape
        lens = ", ".join(map(str, shape.prompt_lens))
        lines = [
            f"{self.num_steps} {shape.kind} steps of {shape.batch} requests, prompts of {lens} tokens: "
            f"{1e3 * self.step_s:.2f} ms each under the profiler, which makes them longer",
            "",
            f"{'phase':<28}{'calls':>8}{'ms':>10}{'share':>9}{'Python ms':>12}",
        ]
        for phase in self.phases:
            name = "  " * (len(phase.path) - 1) + phase.path[-1]
            times = f"{1e3 * phase.total_s:>10.3f}{100 * phase.share:>7.1f} %{1e3 * phase.python_s:>12.3f}"
            lines.append(f"{name:<28}{phase.calls:>8.1f}{times}")
        lines += ["", f"{'operator':<48}{'calls':>8}{'own ms':>10}{'share':>9}"]
        lines += [
            f"{each.name[:46]:<48}{each.calls:>8.1f}{1e3 * each.own_s:>10.3f}{100 * each.share:>7.1f} %"
            for each in self.operators[:TOP]
        ]
        if self.kernels:
            lines += ["", f"{'kernel of the GPU':<80}{'ms':>10}"]
            lines += [f"{name[:78]:<80}{1e3 * time_s:>10.3f}" for name, time_s in self.kernels]
        used = ", ".join(f"{name} {value}" for name, value in self.engine.items())
        python = f"{1e3 * self.python_s:.2f} ms of a step ({100 * self.python_s / self.step_s:.1f} %)"
        lines += ["", f"Python outside of operators: {python}.", f"Open {self.file} in ui.perfetto.dev.", used]
        return "\n".join([*lines, self.machine.to_text()])


def _phases(steps: tuple[Node, ...]) -> tuple[PhaseTime, ...]:
    """A row for each path of ranges, in the order in which they first began."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for step in steps:
        for path, calls, total_us, operators_us in _rows(step, ()):
            row = sums.setdefault(path, [0.0, 0.0, 0.0])
            for i, value in enumerate((calls, total_us, total_us - operators_us)):
                row[i] += value
    whole_us = sums[(STEP,)][1]
    # Depth first, also where only a later step had some range.
    order = {path: i for i, path in enumerate(sums)}
    paths = sorted(sums, key=lambda path: [order[path[: i + 1]] for i in range(len(path))])
    return tuple(
        PhaseTime(path, calls / len(steps), total / 1e6 / len(steps), total / whole_us, python / 1e6 / len(steps))
        for path in paths
        for calls, total, python in [sums[path]]
    )


def _rows(node: Node, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int, float, float]]:
    """(path, calls, microseconds, of which in operators) of a range and all ranges inside it."""
    path = (*above, node.name if above else STEP)
    yield path, 1, node.duration_us, node.operators_us
    inside = [child for child in node.children if child.is_range]
    for child in inside:
        yield from _rows(child, path)
    if inside:
        left_us = node.duration_us - math.fsum(child.duration_us for child in inside)
        operators_us = math.fsum(child.duration_us for child in node.children if not child.is_range)
        yield (*path, BETWEEN), 1, left_us, operators_us


def _operators(steps: tuple[Node, ...]) -> tuple[OperatorTime, ...]:
    sums: dict[str, tuple[int, float]] = {}
    for step in steps:
        for node in step.walk():
            if not node.is_range:
                calls, own_us = sums.get(node.name, (0, 0.0))
                sums[node.name] = calls + 1, own_us + node.own_us
    whole_us, num_steps = sum(step.duration_us for step in steps), len(steps)
    return tuple(
        OperatorTime(name, calls / num_steps, own_us / 1e6 / num_steps, own_us / whole_us)
        for name, (calls, own_us) in sorted(sums.items(), key=lambda each: -each[1][1])
    )
