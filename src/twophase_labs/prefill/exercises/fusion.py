"""2.6 Fusion: the residual and the norm in one kernel."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.kit.guarded import run_guarded
from twophase_labs.machine.checks import Draw, compare, finite
from twophase_labs.machine.exercise import cases, exercise

ROWS = cases(num_rows=(1, 3, 5, 2), width=(16, 24, 576, 1))

NORM = exercise("2.6", "Residual and norm in one kernel", "add_rmsnorm_kernel", "kernel", points=4, minutes=16, lines=8)
NORM.difficulty = 2
NORM.objective = "write a fused kernel in Triton from an empty body"
NORM.hints = (
    "It is `row_max_kernel` of section 6 with three loads instead of one, and two stores.",
    "Load a row of x and of residual with the mask and `other=0.0`; add; store h; the mean of squares is `tl.sum(h "
    "* h, axis=0) / N`, since masked elements are 0; `tl.rsqrt` is one over the square root.",
    "Skeleton:\n"
    "row, columns = tl.program_id(0), tl.arange(0, BLOCK_N)\n"
    "mask = ...\n"
    "offs = row * N + columns\n"
    "h = tl.load(x_ptr + offs, mask=mask, other=0.0) + ...\n"
    "tl.store(h_ptr + offs, ...)\n"
    "mean_square = ...\n"
    "weight = tl.load(...)\n"
    "tl.store(y_ptr + offs, ..., mask=mask)",
)


def add_norm(answer: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    def launch(x: Tensor, residual: Tensor, weight: Tensor, y: Tensor, h: Tensor) -> None:
        num_rows, width = x.shape
        block = 1 << (width - 1).bit_length()
        answer.add_rmsnorm_kernel[(num_rows,)](x, residual, weight, y, h, eps, N=width, BLOCK_N=block)

    inputs = {"x": x, "residual": residual, "weight": weight}
    outputs = {"y": torch.empty_like(x), "h": torch.empty_like(x)}
    got = run_guarded(launch, inputs, outputs)
    return got["y"], got["h"]


def expected_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """A row at a time, in float64."""
    ys, hs = [], []
    for a, b in zip(x.double(), residual.double(), strict=True):
        h = a + b
        ys.append(h / (float(h @ h) / len(h) + eps) ** 0.5 * weight.double())
        hs.append(h)
    return torch.stack(ys).float(), torch.stack(hs).float()


def rows_of(draw: Draw, num_rows: int, width: int, size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    return size * draw.normal(num_rows, width), size * draw.normal(num_rows, width), draw.normal(width)


@NORM.check("adds the residual", *ROWS)
def adds(answer: Any, draw: Draw, num_rows: int, width: int) -> None:
    """h = x + residual, one row per program, stored under a mask."""
    x, residual, weight = rows_of(draw, num_rows, width)
    _, h = add_norm(answer, x, residual, weight, 1e-5)
    compare(h, x + residual, what="h", axes=("row", "column"))


@NORM.check("normalises each row", *ROWS)
def normalises(answer: Any, draw: Draw, num_rows: int, width: int) -> None:
    """Divide by the root of the mean of squares: a sum over the row, over N and not over BLOCK_N."""
    x, residual, _ = rows_of(draw, num_rows, width)
    weight = torch.ones(width)
    y, _ = add_norm(answer, x, residual, weight, 1e-6)
    finite(y, what="y", axes=("row", "column"))
    compare(y, expected_norm(x, residual, weight, 1e-6)[0], what="y with weights of 1", axes=("row", "column"))


@NORM.check("multiplies by the weights", *ROWS)
def weighs(answer: Any, draw: Draw, num_rows: int, width: int) -> None:
    """One weight per column, the same for all rows."""
    x, residual, weight = rows_of(draw, num_rows, width)
    eps = draw.choice((1e-6, 1e-5, 0.1))
    y, _ = add_norm(answer, x, residual, weight, eps)
    compare(y, expected_norm(x, residual, weight, eps)[0], what="y", axes=("row", "column"))


@NORM.check("adds eps under the root", eps=(0.01, 1.0))
def uses_eps(answer: Any, draw: Draw, eps: float) -> None:
    """eps is added to the mean square, before the root."""
    x, residual, weight = rows_of(draw, 3, 24, size=0.05)
    y, _ = add_norm(answer, x, residual, weight, eps)
    compare(y, expected_norm(x, residual, weight, eps)[0], what=f"y with eps = {eps:g}", axes=("row", "column"))


@NORM.check("survives rows of zeros")
def survives_zeros(answer: Any, draw: Draw) -> None:
    """With eps under the root nothing is divided by 0."""
    y, h = add_norm(answer, torch.zeros(2, 12), torch.zeros(2, 12), draw.normal(12), 1e-5)
    compare(h, torch.zeros(2, 12), what="h of rows of zeros", axes=("row", "column"))
    compare(y, torch.zeros(2, 12), what="y of rows of zeros", axes=("row", "column"))
