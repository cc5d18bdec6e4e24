"""What a decode step costs on this machine: its arithmetic, its bytes, and the clock; and pictures of the three."""

from collections.abc import Mapping
from functools import cache

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from twophase import LLM, SamplingParams
from twophase_labs.kit import ceilings
from twophase_labs.kit.timing import Timed
from twophase_labs.machine.pictures import COLOURS, INK

CPU = torch.device("cpu")
NUM_WEIGHTS = 134_515_008  # SmolLM2-135M; embedding and output matrix are one, so it counts once
FLOATS = 4  # bytes of a float32 weight, K or V: what the engine uses on a CPU


def bandwidth() -> float:
    """Bytes per second between this machine's memory and one thread."""
    return ceilings.copy_bandwidth(CPU)


def matmul_rate() -> float:
    """FLOP per second of one thread in a large float32 matrix product."""
    return ceilings.matmul_rate(CPU)


@cache
def open_engine() -> LLM:
    """The engine with SmolLM2 in float32 on the CPU."""
    return LLM(device="cpu", num_kv_blocks=64, max_num_seqs=8)


@cache
def measured_step_s(num_prompt: int = 32, num_steps: int = 24) -> float:
    """Seconds of a decode step of one sequence in the engine: the best of its steps, for others only add to it."""
    engine = open_engine().engine
    params = SamplingParams(temperature=0, max_tokens=num_steps + 1, ignore_eos=True)
    prompt = {"prompt_token_ids": list(range(100, 100 + num_prompt))}
    engine.add_request("step time", prompt, params, stream=False)
    engine.step()  # the prompt
    step = Timed(engine.step)
    while engine.has_unfinished_requests():
        step()
    return min(step.elapsed_s)


def smollm2_step_bytes(context: int) -> int:
    """Weights and cache of one decode step of one sequence, in float32."""
    kv_bytes_per_token = 2 * 30 * 3 * 64 * FLOATS
    return NUM_WEIGHTS * FLOATS + context * kv_bytes_per_token


def share_of_ceiling() -> float:
    """Tokens per second of the engine, as a percentage of what bytes and bandwidth allow."""
    return 100 * smollm2_step_bytes(44) / bandwidth() / measured_step_s()


def draw_times(times_s: Mapping[str, float], title: str) -> Figure:
    """One bar per way of arriving at a step's time."""
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.5 * len(times_s)), facecolor="white")
    longest = max(times_s.values())
    for row, (elapsed_s, colour) in enumerate(zip(times_s.values(), COLOURS, strict=False)):
        axes.barh(row, 1e3 * elapsed_s, 0.65, color=colour)
        axes.text(1e3 * (elapsed_s + 0.012 * longest), row, f"{1e3 * elapsed_s:.1f} ms", va="center", color=INK)
    axes.set_yticks(range(len(times_s)), list(times_s))
    axes.set(xlabel="time of one decode step (ms)", xlim=(0, 1e3 * longest * 1.14))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left")
    figure.tight_layout()
    plt.close(figure)
    return figure


def draw_step_bytes(steps: Mapping[str, tuple[float, float]]) -> Figure:
    """For each configuration the gigabytes of weights and of K and V that one decode step reads."""
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.5 * len(steps)), facecolor="white")
    widest = max(sum(pair) for pair in steps.values()) / 1e9
    for row, (weight_bytes, kv_bytes) in enumerate(steps.values()):
        axes.barh(row, weight_bytes / 1e9, 0.65, color=COLOURS[0], label="weights" if row == 0 else None)
        axes.barh(
            row,
            kv_bytes / 1e9,
            0.65,
            left=weight_bytes / 1e9,
            color=COLOURS[1],
            hatch="///",
            edgecolor="white",
            linewidth=0,
            label="K and V" if row == 0 else None,
        )
        text = f"{weight_bytes / 1e9:.2f} + {kv_bytes / 1e9:.2f} GB"
        axes.text((weight_bytes + kv_bytes) / 1e9 + 0.01 * widest, row, text, va="center", color=INK)
    axes.set_yticks(range(len(steps)), list(steps))
    axes.set(xlabel="read from memory in one step (GB)", xlim=(0, widest * 1.25))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("What one decode step reads", loc="left")
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    plt.close(figure)
    return figure


def draw_step_times(curves: Mapping[str, tuple[list[int], list[float]]]) -> Figure:
    """Milliseconds of a step against the tokens already there, one line per way of computing it."""
    figure, axes = plt.subplots(figsize=(7.2, 3.6), facecolor="white")
    for (name, (lengths, elapsed_s)), colour, style in zip(curves.items(), COLOURS, ("o", "s"), strict=False):
        axes.plot(lengths, [1e3 * s for s in elapsed_s], style, markersize=5, color=colour, label=name)
    axes.set(xlabel="tokens before the step", ylabel="time of the step (ms)")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("What one more token costs", loc="left")
    axes.legend(frameon=False)
    figure.tight_layout()
    plt.close(figure)
    return figure
