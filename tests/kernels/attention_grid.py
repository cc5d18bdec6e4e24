"""The grid that both attention kernels are tested on: points with each of its values, and with every three."""

from dataclasses import dataclass

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


# Each point is a kernel to compile: where there is no GPU, those with every three values take too long for `make test`.
three_values = pytest.mark.full if HERE == "cpu" else pytest.mark.gpu


def grid_points(kernel: str, strength: int) -> list[GridPoint]:
    """Points that have each value, or every two or three, between them. 'decode' and 'few' share those of two and three,
    as two values of one more axis; 'prefill' has no splits."""
    if kernel == "prefill":
        return [GridPoint(*others, *window, 1) for *others, window in covering(AXES[:-1], strength)]
    points = covering((*AXES, ("decode", "few")), strength)
    return [
        GridPoint(*others, *window, splits)
        for *others, window, splits, name in points
        if name == kernel or strength == 1
    ]


def typical_points() -> list[GridPoint]:
    """A few, with every value."""
    return [GridPoint(*others, *window, splits) for *others, window, splits in covering(AXES, 1)]


def small_tiles(block_m: int, block_n: int) -> Tiles | None:
    """Tiles of which short sequences have several; on a GPU the real ones, for which registers are enough."""
    return Tiles(block_m, block_n, num_warps=4, num_stages=1) if HERE == "cpu" else None
