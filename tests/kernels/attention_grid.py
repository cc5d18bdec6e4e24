"""The grid that both attention kernels are tested on, and a sample of it for every run."""

import itertools
import random
from dataclasses import dataclass
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


def full_grid() -> list[GridPoint]:
    """Every combination of dtype, K/V format, head size, heads and page; windows and splits take turns."""
    turns = itertools.cycle(itertools.product(WINDOWS, SPLITS))
    axes = itertools.product(DTYPES, KV_FORMATS, HEAD_DIMS, HEADS, PAGES)
    return [GridPoint(*point, *window, splits) for point, (window, splits) in zip(axes, turns, strict=False)]


def grid_slices() -> list[Any]:
    """The full grid in portions that make good test names: one for each dtype, K/V format and head size."""
    portions = itertools.groupby(full_grid(), key=lambda point: (point.dtype, point.kv_format, point.head_dim))
    return [
        pytest.param(list(points), id=f"{str(dtype).removeprefix('torch.')}-{kv_format}-{head_dim}")
        for (dtype, kv_format, head_dim), points in portions
    ]


def sample_grid(size: int) -> list[GridPoint]:
    """Points that together have every value of every axis (tested), fewer of the expensive 32 heads."""
    points = random.Random(0).sample(full_grid(), 400)
    chosen: list[GridPoint] = []
    seen: set[tuple[str, object]] = set()

    def new_values(point: GridPoint) -> int:
        return len(set(vars(point).items()) - seen)

    while len(chosen) < size:
        best = max(points, key=new_values)
        seen = seen | set(vars(best).items()) if new_values(best) else set(vars(best).items())
        chosen.append(best)
        points.remove(best)
    return chosen


def small_tiles(block_m: int, block_n: int = 64) -> Tiles | None:
    """In the interpreter tiles as small as a GPU's, so that short sequences have several; on a GPU the real ones."""
    return Tiles(block_m, block_n, num_warps=4, num_stages=1) if HERE == "cpu" else None
