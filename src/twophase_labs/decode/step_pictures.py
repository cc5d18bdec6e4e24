"""Tokens per second against the batch, and step time against the context, beside what bytes and FLOPs allow."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from twophase_labs.kit.draw import done, one_axes
from twophase_labs.machine.pictures import COLOURS, INK, LINE


def draw_batching(step_s: Mapping[int, float], least_s: Mapping[int, float], ridge: int) -> Figure:
    """Measured tokens/s under the bound of weights, arithmetic and K/V; `ridge` is where the products meet the roof."""
    batches = sorted(step_s)
    figure, axes = one_axes(7.6, 4, "Decode: one read of the weights serves the whole batch")
    axes.loglog(batches, [b / least_s[b] for b in batches], "s--", color=COLOURS[5], label="bound, kernel by kernel")
    axes.loglog(batches, [b / step_s[b] for b in batches], "o-", color=COLOURS[0], label="measured")
    if ridge <= batches[-1]:
        axes.axvline(ridge, color=LINE, linewidth=1)
        axes.annotate(f" ridge: batch {ridge}", (ridge, 0.04), xycoords=("data", "axes fraction"), color=INK)
    axes.set_xticks(batches, [str(b) for b in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="sequences in the batch", ylabel="tokens per second, all sequences")
    axes.legend(frameon=False, loc="upper left")
    return done(figure)


def draw_step_time(step_s: Mapping[int, float], a: float, b: float, least_a: float, least_b: float) -> Figure:
    """Step time against context with the fitted line, and the line that the bytes alone would need."""
    contexts = np.array(sorted(step_s))
    ends = np.array([0, contexts[-1]])
    figure, axes = one_axes(7.6, 3.8, "A decode step: a constant, and a price per token of context")
    axes.plot(contexts, [1e3 * step_s[int(t)] for t in contexts], "o", color=INK, label="measured, one sequence")
    axes.plot(ends, 1e3 * (a + b * ends), "-", color=COLOURS[0], label="fitted: a + b t")
    axes.plot(ends, 1e3 * (least_a + least_b * ends), "--", color=COLOURS[5], label="reading weights and K/V once")
    axes.set(xlabel="context t (tokens)", ylabel="time of a decode step (ms)", ylim=(0, None), xlim=(0, None))
    axes.legend(frameon=False, loc="upper left")
    return done(figure)


def draw_reuse(batches: tuple[int, ...] = (1, 2, 4)) -> Figure:
    """What a step reads: the weights once, K and V of each sequence."""
    figure, axes = plt.subplots(figsize=(7.6, 2.3), facecolor="white")
    for row, batch in enumerate(batches):
        axes.barh(row, 8, 0.6, color=COLOURS[0], alpha=0.75, edgecolor="white")
        axes.text(4, row, "weights, once", ha="center", va="center", color="white")
        for i in range(batch):
            axes.barh(row, 0.9, 0.6, left=8 + i, color=COLOURS[4], alpha=0.8, edgecolor="white", hatch="//")
            axes.text(8.45 + i, row, f"KV {i}", ha="center", va="center", fontsize=8, color=INK)
        axes.text(8.2 + batch, row, f"-> {batch} token{'s' * (batch > 1)}", va="center", color=INK)
    axes.set_yticks(range(len(batches)), [f"batch {batch}" for batch in batches])
    axes.set(xticks=[], xlabel="bytes read in one step (not to scale)", xlim=(0, 14.5))
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    return done(figure)


def draw_closing(per_token_s: Mapping[int, float], first_s: float, arithmetic_s: float) -> Figure:
    """Milliseconds per token against the batch, between what the lab began with and the arithmetic of a token."""
    batches = sorted(per_token_s)
    figure, axes = one_axes(7.6, 3.6, "One token of SmolLM2, alone and in company")
    axes.plot(batches, [1e3 * per_token_s[b] for b in batches], "o-", color=INK, label="with your work")
    axes.axhline(1e3 * first_s, color=COLOURS[0], linestyle="--", label="the first cell: one sequence")
    axes.axhline(1e3 * arithmetic_s, color=COLOURS[5], linestyle=":", linewidth=2, label="its arithmetic")
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(b) for b in batches])
    axes.set(xlabel="sequences in the step", ylabel="time per token (ms)")
    axes.set_ylim(0, 1.45e3 * max(first_s, *per_token_s.values()))
    axes.legend(frameon=False, loc="upper right")
    return done(figure)
