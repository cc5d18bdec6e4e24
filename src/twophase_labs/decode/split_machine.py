"""A machine of many multiprocessors, for plans of how to split the keys of a ragged batch."""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from twophase_labs.kit.draw import done, one_axes
from twophase_labs.machine.pictures import COLOURS, LINE

TILE = 64  # keys
START = 4  # what a program takes besides its tiles (its queries, its partial result, the merge), in times of a tile


def num_tiles(length: int) -> int:
    """Tiles of a sequence's keys."""
    return -(-length // TILE)


def timeline(
    lengths: Sequence[int], splits: Sequence[int], num_sms: int, num_kv_heads: int = 8
) -> list[tuple[int, int]]:
    """(start, end) of every program in times of a tile.

    A sequence has `splits` programs for each KV head, with equally many tiles but for the last ones. Programs start in
    the order of the sequences, each on the multiprocessor that is free first.
    """
    free_at, ran = [0] * num_sms, []
    for length, n in zip(lengths, splits, strict=True):
        tiles = num_tiles(length)
        per_split = -(-tiles // n)
        for split in range(n * num_kv_heads):
            start = free_at[0]
            end = start + START + max(0, min(per_split, tiles - split % n * per_split))
            heapq.heapreplace(free_at, end)
            ran.append((start, end))
    return ran


def makespan(lengths: Sequence[int], splits: Sequence[int], num_sms: int, num_kv_heads: int = 8) -> int:
    """When the last program ends, in times of a tile."""
    return max(end for _, end in timeline(lengths, splits, num_sms, num_kv_heads))


def draw_plans(plans: Mapping[str, Sequence[int]], lengths: Sequence[int], num_sms: int) -> Figure:
    """Multiprocessors at work over time, a curve per plan."""
    figure, axes = one_axes(8.4, 3.4, "A step is over when its last program ends")
    for (name, splits), colour, style in zip(plans.items(), (COLOURS[3], COLOURS[0]), ("--", "-"), strict=False):
        ran = timeline(lengths, splits, num_sms)
        ends = max(end for _, end in ran)
        busy = [sum(start <= at < end for start, end in ran) for at in range(ends)]
        axes.step(np.arange(ends + 1), [*busy, 0], style, where="post", color=colour, label=f"{name}: {ends}")
    axes.axhline(num_sms, color=LINE, linewidth=1)
    axes.set(xlabel="time (of a tile)", ylabel="multiprocessors at work", ylim=(0, 1.12 * num_sms), xlim=(0, None))
    axes.legend(frameon=False)
    return done(figure)
