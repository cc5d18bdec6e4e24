"""A service that does not fit its GPU, and nine steps that could make it fit: bytes from the planner."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase_labs.kit.draw import done
from twophase_tools.capacity.config import config_of
from twophase_tools.capacity.memory import MemoryTable, blocks_of, memory_table
from twophase_tools.colours import COLOURS, EMPTY, INK

L4 = {"name": "L4", "memory": "24 GB", "flops_per_s": 121e12, "bytes_per_s": 300e9, "link_bytes_per_s": 32e9}
H100 = "h100"
GB = 1e9


@dataclass(frozen=True)
class Step:
    """A way to need less memory, or to have more.

    Attributes:
        harm: Points, as this service's owners gave them: 1 hardly shows, 10 is a new budget.
        changes: Of the plan.
        resident: Share of the sequences whose K and V are on the GPU.
    """

    harm: int
    what: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    resident: float = 1.0


SERVICE: dict[str, Any] = {
    "model": "llama-3-8b",
    "hardware": L4,
    "max_model_len": "16384",
    "max_num_seqs": "8",
    "max_num_batched_tokens": "8192",
    "prompt_tokens": "12000",
    "output_tokens": "1000",
}

# In the order in which they are usually tried: input, output, step; then bits; then concurrency, host, hardware.
STEPS = {
    "shorter prompts": Step(
        2, "the 8 best passages instead of 16: 12,000 tokens become 7,000", {"prompt_tokens": "7000"}
    ),
    "shorter answers": Step(1, "max_tokens 500 instead of 1,000", {"output_tokens": "500"}),
    "smaller chunks": Step(1, "1,024 tokens in a step at most, not 8,192", {"max_num_batched_tokens": "1024"}),
    "K/V in 8 bits": Step(2, "behind a gate that asks for needles", {"kv_cache_dtype": "fp8_e4m3"}),
    "weights in 8 bits": Step(2, "behind a gate", {"quantization": "int8"}),
    "weights in 4 bits": Step(4, "behind a gate, one slice at a time", {"quantization": "int4"}),
    "half at a time": Step(5, "max_num_seqs 4 instead of 8: the others queue", {"max_num_seqs": "4"}),
    "half on the host": Step(6, "K and V of every other sequence swapped out: they take turns", resident=0.5),
    "a second GPU": Step(9, "tensor_parallel_size 2", {"tensor_parallel_size": "2"}),
}
HARM = {name: step.harm for name, step in STEPS.items()}


def table(taken: Sequence[str] = ()) -> MemoryTable:
    """The planner's memory table with these steps taken."""
    return _table(_values(taken))


def missing(taken: Sequence[str] = ()) -> int:
    """Bytes on each GPU that are missing with these steps taken, so that all sequences fit at their full length; 0 or
    below: it fits."""
    values = _values(taken)
    memory = _table(values)
    num_tokens = int(values["prompt_tokens"]) + int(values["output_tokens"])
    resident = min((STEPS[name].resident for name in taken), default=1.0)
    num_resident = -(-int(values["max_num_seqs"]) * resident // 1)
    return int(num_resident) * blocks_of(num_tokens, memory.block_size) * memory.block_bytes - memory.pool_bytes


def least_harm() -> tuple[int, tuple[str, ...]]:
    """Of all sets of steps that make it fit, the one with the least harm; by trying each."""
    sets = [names for size in range(len(STEPS) + 1) for names in itertools.combinations(STEPS, size)]
    return min((sum(HARM[name] for name in names), names) for names in sets if missing(names) <= 0)


def _values(taken: Sequence[str]) -> dict[str, Any]:
    values = dict(SERVICE)
    for name in STEPS:  # in this order, whatever the order of `taken`: 4 bits come after 8
        if name in taken:
            values |= STEPS[name].changes
    return values


def _table(values: Mapping[str, Any]) -> MemoryTable:
    plan: dict[str, Any] = dict(values)
    workload = {"rate": 0.2} | {name: plan.pop(name) for name in ("prompt_tokens", "output_tokens")}
    return memory_table(config_of(plan | {"workload": workload}))


def split_line(taken: Sequence[str] = ()) -> str:
    memory, short = table(taken), missing(taken)
    parts = {
        "left alone": memory.headroom_bytes,
        "weights": memory.weight_bytes,
        "a step's arrays": memory.workspace_bytes,
        "K/V needed": memory.pool_bytes + short,
    }
    told = ", ".join(f"{name} {value / GB:.2f}" for name, value in parts.items())
    verdict = f"{short / GB:.2f} missing" if short > 0 else f"{-short / GB:.2f} to spare"
    return f"{memory.total_bytes / GB:.1f} GB: {told}: {verdict}"


def draw_triage(orders: Mapping[str, Sequence[str]]) -> Figure:
    """What is missing after each step of each order, and the harm done so far."""
    figure, axes = plt.subplots(figsize=(9.5, 3.6), facecolor="white")
    for number, (title, order) in enumerate(orders.items()):
        harms = [0]
        rest = [missing() / GB]
        for position in range(len(order)):
            taken = order[: position + 1]
            harms.append(sum(HARM[name] for name in taken))
            rest.append(missing(taken) / GB)
            axes.annotate(order[position], (harms[-1], rest[-1]), (4, 5 + 9 * (number % 2)), textcoords="offset points",
                          fontsize=7.5, color=INK)  # fmt: skip
        colour, style, marker = COLOURS[(0, 1, 5)[number % 3]], ("-", "--", ":")[number % 3], "os^"[number % 3]
        axes.step(harms, rest, style, where="post", color=colour, linewidth=1.8, marker=marker, label=title)
    axes.axhline(0, color=INK, linewidth=1)
    axes.axhspan(-100, 0, color=EMPTY, alpha=0.5, zorder=0)
    axes.set(xlabel="harm done so far, points", ylabel="GB still missing", ylim=(-6, None), xlim=(-0.3, 10))
    axes.set_title("Until it fits", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return done(figure)
