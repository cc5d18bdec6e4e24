"""A Chrome trace of torch's profiler read back: ranges and operators, one inside the other."""

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twophase_tools.profiling.ranges import STEP

RANGE, OPERATOR, KERNEL = "user_annotation", "cpu_op", "kernel"  # categories of events


@dataclass(slots=True)
class Node:
    """A range or an operator, with what happened inside it.

    Attributes:
        start_us, duration_us: Microseconds on the trace's clock.
        children: In order; they do not overlap.
    """

    name: str
    is_range: bool
    start_us: float
    duration_us: float
    children: list["Node"] = field(default_factory=list)

    @property
    def own_us(self) -> float:
        """What no child accounts for."""
        return self.duration_us - math.fsum(child.duration_us for child in self.children)

    @property
    def operators_us(self) -> float:
        """Time inside of operators: of the outermost ones, which contain the others."""
        if not self.is_range:
            return self.duration_us
        return math.fsum(child.operators_us for child in self.children)

    def walk(self) -> Iterator["Node"]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Trees:
    """A profile.

    Attributes:
        steps: The ranges of whole steps, in order.
        kernels_us: Time of each kernel that ran on a GPU, by name; empty without one.
    """

    steps: tuple[Node, ...]
    kernels_us: dict[str, float]


def read_trees(file: Path) -> Trees:
    """Read a trace that `record` wrote, packed or not."""
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8") as text:
        return trees_of(json.load(text)["traceEvents"])


def trees_of(events: Sequence[dict[str, Any]]) -> Trees:
    """The steps' trees; events on other threads, and before and after the steps, are left out."""
    spans = [event for event in events if event["ph"] == "X"]
    steps = [event for event in spans if event.get("cat") == RANGE and event["name"].startswith(f"{STEP} ")]
    threads = {(event["pid"], event["tid"]) for event in steps}
    inside = [e for e in spans if e.get("cat") in (RANGE, OPERATOR) and (e["pid"], e["tid"]) in threads]
    kernels_us: dict[str, float] = {}
    for event in spans:
        if event.get("cat") == KERNEL:
            kernels_us[event["name"]] = kernels_us.get(event["name"], 0.0) + event["dur"]
    roots = _nested(inside)
    return Trees(tuple(root for root in roots if root.is_range and root.name.startswith(f"{STEP} ")), kernels_us)


def _nested(events: Sequence[dict[str, Any]]) -> list[Node]:
    """Events of one thread as trees. A child is what starts before its parent ends: ends are rounded, so may touch."""
    roots: list[Node] = []
    above: list[Node] = []
    # Of two that start at once, the longer is the outer one.
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        node = Node(event["name"], event["cat"] == RANGE, float(event["ts"]), float(event["dur"]))
        while above and node.start_us >= above[-1].start_us + above[-1].duration_us:
            above.pop()
        (above[-1].children if above else roots).append(node)
        above.append(node)
    return roots
