"""The grid that both attention kernels are tested on, and points with every pair of its values for every run."""

import itertools
import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE, PagedCase, make_case
from tests.kernels.covering import covering
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

    def case(self, seq_lens: list[int], query_lens: list[int] | None = None) -> PagedCase:
        return make_case(
            seq_lens, query_lens, heads=self.heads, head_dim=self.head_dim, page=self.page, dtype=self.dtype,
            kv_format=self.kv_format, device=HERE,
        )  # fmt: skip

    @property
    def windows(self) -> dict[str, int | None]:
        return {"window": self.window, "num_sinks": self.num_sinks}

    @property
    def group(self) -> int:
        return self.heads[0] // self.heads[1]


AXES = (DTYPES, KV_FORMATS, HEAD_DIMS, HEADS, PAGES, WINDOWS, SPLITS)


def whole_grid() -> list[GridPoint]:
    """Every combination of dtype, K/V format, head size, heads and page; windows and splits take turns."""
    turns = itertools.cycle(itertools.product(WINDOWS, SPLITS))
    axes = itertools.product(DTYPES, KV_FORMATS, HEAD_DIMS, HEADS, PAGES)
    return [GridPoint(*point, *window, splits) for point, (window, splits) in zip(axes, turns, strict=False)]


# Each point is a kernel to compile. Where there is a GPU, tests are run rarely, and all points; elsewhere a selection, or
# with this variable all of them, which takes two cores twelve minutes: `WHOLE_GRID=1 pytest --full -k whole_grid -n 2 tests/kernels`.
of_the_whole_grid = pytest.mark.full if HERE == "cpu" else pytest.mark.gpu
SELECTED = HERE == "cpu" and not os.environ.get("WHOLE_GRID")


def grid_slices(*kernels: str) -> list[Any]:
    """(kernel, points) in portions that make good test names: one for each dtype, K/V format and head size."""
    slices = []
    for kernel in kernels:
        points = sorted(grid_points(kernel, 3), key=_portion) if SELECTED else whole_grid()
        for name, own in itertools.groupby(points, key=_portion):
            slices.append(pytest.param(kernel, list(own), id=f"{kernel}-{name}"))
    return slices


def _portion(point: GridPoint) -> str:
    return f"{str(point.dtype).removeprefix('torch.')}-{point.kv_format}-{point.head_dim}"


def grid_points(kernel: str, strength: int) -> list[GridPoint]:
    """Points that have every two, or three, values between them (tested). 'decode' and 'few' share theirs, as two values
    of one more axis; 'prefill' has no splits."""
    if kernel == "prefill":
        return [GridPoint(*others, *window, 1) for *others, window in covering(AXES[:-1], strength)]
    points = covering((*AXES, ("decode", "few")), strength)
    return [GridPoint(*others, *window, splits) for *others, window, splits, name in points if name == kernel]


def typical_points() -> list[GridPoint]:
    """A few, with every value."""
    return [GridPoint(*others, *window, splits) for *others, window, splits in covering(AXES, 1)]


def small_tiles(block_m: int, block_n: int) -> Tiles | None:
    """Tiles of which short sequences have several; on a GPU the real ones, for which registers are enough."""
    return Tiles(block_m, block_n, num_warps=4, num_stages=1) if HERE == "cpu" else None
