"""What a decode step costs on this machine: its arithmetic, its bytes, and the clock; and pictures of the three."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from matplotlib.figure import Figure
from torch.utils._python_dispatch import TorchDispatchMode

from twophase import LLM, SamplingParams
from twophase_labs.decode.tiny_llama import tiny_llama
from twophase_labs.kit import ceilings
from twophase_labs.kit.draw import done, one_axes
from twophase_labs.kit.timing import Timed
from twophase_labs.machine.pictures import COLOURS, INK

CPU = torch.device("cpu")
NUM_WEIGHTS = 134_515_008  # SmolLM2-135M; embedding and output matrix are one, so it counts once


def bandwidth() -> float:
    """Bytes per second between this machine's memory and one thread."""
    return ceilings.copy_bandwidth(CPU)


def matmul_rate() -> float:
    """FLOP per second of one thread in a large float32 matrix product."""
    return ceilings.matmul_rate(CPU)


@cache
def open_engine() -> LLM:
    """The engine with SmolLM2 in float32 on the CPU, with its own cache manager and its own attention."""
    return LLM(device="cpu", attention_backend="torch", block_size=16, num_kv_blocks=64, max_num_seqs=16)


def decode_step_s(llm: LLM, num_sequences: int = 1, num_prompt: int = 32, num_steps: int = 24) -> float:
    """Seconds of a decode step of so many sequences: the best of `num_steps`, for other programs only add to it."""
    engine = llm.engine
    params = SamplingParams(temperature=0, max_tokens=num_steps + 1, ignore_eos=True)
    for number in range(num_sequences):
        prompt = {"prompt_token_ids": list(range(3 + number, 3 + number + num_prompt))}
        engine.add_request(f"step time {number}", prompt, params, stream=False)
    engine.step()  # the prompts
    step = Timed(engine.step)
    while engine.has_unfinished_requests():
        step()
    return min(step.elapsed_s)


@cache
def measured_step_s() -> float:
    """Seconds of a decode step of one sequence in the engine."""
    return decode_step_s(open_engine())


@cache
def thin_engine() -> LLM:
    """The engine with a model of 30 layers, as SmolLM2 has, and hardly a weight in them."""
    folder, _ = tiny_llama(num_layers=30)
    return LLM(
        folder, device="cpu", dtype="float32", attention_backend="torch", block_size=16, num_kv_blocks=64,
        skip_tokenizer_init=True,
    )  # fmt: skip


def num_operations(llm: LLM) -> int:
    """How many operations of torch one decode step calls."""
    counter = _Counter()
    engine = llm.engine
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    engine.add_request("count", {"prompt_token_ids": [5, 6, 7]}, params, stream=False)
    engine.step()
    with counter:
        engine.step()
    return counter.num_calls


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_calls += 1
        return func(*args, **(kwargs or {}))


def draw_times(times_s: Mapping[str, float], title: str) -> Figure:
    """One bar per way of arriving at a step's time."""
    figure, axes = one_axes(8, 0.9 + 0.5 * len(times_s), title)
    longest = max(times_s.values())
    for row, (elapsed_s, colour) in enumerate(zip(times_s.values(), COLOURS, strict=False)):
        axes.barh(row, 1e3 * elapsed_s, 0.65, color=colour)
        axes.text(1e3 * (elapsed_s + 0.012 * longest), row, f"{1e3 * elapsed_s:.1f} ms", va="center", color=INK)
    axes.set_yticks(range(len(times_s)), list(times_s))
    axes.set(xlabel="time of one decode step (ms)", xlim=(0, 1e3 * longest * 1.14))
    axes.invert_yaxis()
    return done(figure)


def draw_step_times(curves: Mapping[str, tuple[list[int], list[float]]]) -> Figure:
    """Milliseconds of a step against the tokens already there, one line per way of computing it."""
    figure, axes = one_axes(7.2, 3.6, "What one more token costs")
    for (name, (lengths, elapsed_s)), colour, style in zip(curves.items(), COLOURS, ("o", "s"), strict=False):
        axes.plot(lengths, [1e3 * s for s in elapsed_s], style, markersize=5, color=colour, label=name)
    axes.set(xlabel="tokens in the text", ylabel="time of the step (ms)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return done(figure)
