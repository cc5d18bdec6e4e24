"""The grid that both attention kernels are tested on, and points with every pair of its values for every run."""

import itertools
import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE
from twophase_kernels.attend_range import Tiles

KV_FORMATS = ("none", "int8", "fp8_e4m3")
HEAD_DIMS = (64, 80, 96, 128, 256)
HEADS = ((4, 4), (8, 2), (9, 3), (5, 1), (32, 8), (16, 1))
PAGES = (16, 32, 64, 128)
# (window, sinks): none; shorter than a tile; with sinks, some of them inside the window of short sequences; long.
WINDOWS = ((None, 0), (24, 0), (24, 5), (1024, 4))
SPLITS = (1, 2, 3, 7, 16)


@dataclass(frozen=True)
class GridPoint:
    dtype: torch.dtype
    kv_format: str
    head_dim: int
    heads: tuple[int, int]
    page: int
    window: int | None
    num_sinks: int
    num_splits: int

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        heads = f"{self.heads[0]}/{self.heads[1]}/{self.head_dim}"
        return f"{dtype}-{self.kv_format}-{heads}-page{self.page}-w{self.window}+{self.num_sinks}-s{self.num_splits}"


AXES = (DTYPES, KV_FORMATS, HEAD_DIMS, HEADS, PAGES, WINDOWS, SPLITS)


def whole_grid() -> list[GridPoint]:
    """Every combination of dtype, K/V format, head size, heads and page; windows and splits take turns."""
    turns = itertools.cycle(itertools.product(WINDOWS, SPLITS))
    axes = itertools.product(DTYPES, KV_FORMATS, HEAD_DIMS, HEADS, PAGES)
    return [GridPoint(*point, *window, splits) for point, (window, splits) in zip(axes, turns, strict=False)]


# Each point is a kernel to compile. Where there is a GPU, tests are run rarely, and all of them.
of_the_whole_grid = pytest.mark.full if HERE == "cpu" else pytest.mark.gpu


def grid_slices() -> list[Any]:
    """The whole grid in portions that make good test names: one for each dtype, K/V format and head size."""
    portions = itertools.groupby(whole_grid(), key=lambda point: (point.dtype, point.kv_format, point.head_dim))
    return [
        pytest.param(list(points), id=f"{str(dtype).removeprefix('torch.')}-{kv_format}-{head_dim}")
        for (dtype, kv_format, head_dim), points in portions
    ]


def pairs_of(values: tuple[Any, ...]) -> set[tuple[int, Any, int, Any]]:
    """Each two of a combination's values, with their axes."""
    return {(i, a, j, b) for (i, a), (j, b) in itertools.combinations(enumerate(values), 2)}


def all_pairs() -> set[tuple[int, Any, int, Any]]:
    """Every two values of any two axes. A bug that a combination of three values shows is for the whole grid."""
    two = itertools.combinations(enumerate(AXES), 2)
    return {(i, a, j, b) for (i, some), (j, others) in two for a, b in itertools.product(some, others)}


@cache
def pairwise_grid() -> tuple[GridPoint, ...]:
    """Some forty points that have every pair between them (tested): of several drawn, that with most new pairs is next.

    Each distinct point is a kernel to compile, as heads, pages and formats are constants in it.
    """
    rng, points, missing = random.Random(0), [], all_pairs()
    while missing:
        i, a, j, b = min(missing, key=str)
        drawn = [[rng.choice(axis) for axis in AXES] for _ in range(60)]
        for values in drawn:
            values[i], values[j] = a, b
        best = max(drawn, key=lambda values: len(missing & pairs_of(tuple(values))))
        missing -= pairs_of(tuple(best))
        *others, window, splits = best
        points.append(GridPoint(*others, *window, splits))
    return tuple(points)


def small_tiles(block_m: int, block_n: int) -> Tiles | None:
    """Tiles of which short sequences have several; on a GPU the real ones, for which registers are enough."""
    return Tiles(block_m, block_n, num_warps=4, num_stages=1) if HERE == "cpu" else None
