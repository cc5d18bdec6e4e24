"""The table of a profile: the share of each range, the operators that take longest, and Python's part.

Events are those of torch's profiler (`torch.autograd.profiler_util.FunctionEvent`): ranges and operators, each with
those inside it as `cpu_children`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from twophase_tools.bench.machine import MachineRecord
from twophase_tools.profiling.ranges import STEP

TOP = 10


@dataclass(frozen=True, slots=True)
class Row:
    """A range, an operator or a GPU's kernel, all of its name together, per step.

    Attributes:
        name: Of a range with those around it, such as 'step/run/model'.
        calls: How often per step.
        total_s: Seconds per step; of an operator, without the operators inside it.
        share: Of the step.
        python_s: Of a range, seconds per step outside of operators.
    """

    name: str
    calls: float
    total_s: float
    share: float
    python_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Where the time of a step went; all times are means over the steps.

    Attributes:
        what: The steps in words.
        ranges: Depth first.
        operators, kernels: Of the CPU and of a GPU, the longest first.
    """

    what: str
    num_steps: int
    step_s: float
    ranges: tuple[Row, ...]
    operators: tuple[Row, ...]
    kernels: tuple[Row, ...]
    engine: dict[str, str]
    machine: MachineRecord

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        lines = [f"{self.what}: {1e3 * self.step_s:.2f} ms each under the profiler, which makes them longer"]
        for title, rows in (("range", self.ranges), ("operator", self.operators), ("GPU kernel", self.kernels)):
            if rows:
                lines += ["", f"{title:<48}{'calls':>8}{'ms':>10}{'share':>9}{'Python ms':>12}"]
            for row in rows:
                name = "  " * row.name.count("/") + row.name.rpartition("/")[2] if title == "range" else row.name
                python = f"{1e3 * row.python_s:>12.3f}" if title == "range" else ""
                lines.append(f"{name[:46]:<48}{row.calls:>8.1f}{1e3 * row.total_s:>10.3f}{row.share:>9.1%}{python}")
        used = ", ".join(f"{name} {value}" for name, value in self.engine.items())
        return "\n".join([*lines, "", "Python ms: outside of operators.", used, self.machine.to_text()])


def tables_of(events: Iterable[Any]) -> tuple[int, float, tuple[Row, ...], tuple[Row, ...], tuple[Row, ...]]:
    """The number of steps, seconds per step, and the rows of ranges, operators and kernels."""
    events = list(events)
    steps = [event for event in events if _is_range(event) and event.name.startswith(f"{STEP} ")]
    whole_us = math.fsum(_elapsed_us(step) for step in steps)
    ranges: dict[str, list[float]] = {}
    operators: dict[str, list[float]] = {}
    for step in steps:
        for path, event in _walk(step, STEP):
            if _is_range(event):
                _add(ranges, path, _elapsed_us(event), _elapsed_us(event) - _operators_us(event))
            else:
                inside_us = math.fsum(_elapsed_us(child) for child in event.cpu_children)
                _add(operators, event.name, _elapsed_us(event) - inside_us)
    kernels: dict[str, list[float]] = {}
    for event in events:
        if event.device_type.name != "CPU" and not event.is_user_annotation:
            _add(kernels, event.name, _elapsed_us(event))

    def rows(sums: dict[str, list[float]]) -> list[Row]:
        return [
            Row(name, calls / len(steps), us / 1e6 / len(steps), us / whole_us, python_us / 1e6 / len(steps))
            for name, (calls, us, python_us) in sums.items()
        ]

    def longest(sums: dict[str, list[float]]) -> tuple[Row, ...]:
        return tuple(sorted(rows(sums), key=lambda row: -row.total_s)[:TOP])

    # Depth first, in the order of first calls, also where only a later step had some range.
    order = {path: i for i, path in enumerate(ranges)}
    depth_first = sorted(rows(ranges), key=lambda row: [order[above] for above in _aboves(row.name)])
    return len(steps), whole_us / 1e6 / len(steps), tuple(depth_first), longest(operators), longest(kernels)


def _aboves(path: str) -> list[str]:
    """'a/b/c' -> 'a', 'a/b', 'a/b/c'."""
    names = path.split("/")
    return ["/".join(names[: i + 1]) for i in range(len(names))]


def _walk(event: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, event
    for child in event.cpu_children:
        yield from _walk(child, f"{path}/{child.name}" if _is_range(child) else path)


def _is_range(event: Any) -> bool:
    return bool(event.is_user_annotation) and event.device_type.name == "CPU"


def _elapsed_us(event: Any) -> float:
    return float(event.time_range.elapsed_us())


def _operators_us(event: Any) -> float:
    """Time inside of operators: of the outermost ones, which contain the others."""
    if not _is_range(event):
        return _elapsed_us(event)
    return math.fsum(_operators_us(child) for child in event.cpu_children)


def _add(sums: dict[str, list[float]], name: str, *values: float) -> None:
    row: Sequence[float] = sums.get(name, [0.0, 0.0, 0.0])
    sums[name] = [old + new for old, new in zip(row, (1.0, *values, 0.0)[:3], strict=True)]
