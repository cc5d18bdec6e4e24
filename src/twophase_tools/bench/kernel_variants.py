"""What `twophase bench kernels` compares: contenders for one piece of work, and how far two answers are apart."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

OURS = "twophase"
REFERENCE = "torch reference"


class Work(NamedTuple):
    """Lower bounds: least bytes to and from device memory, and multiply and add counted as two operations. A measured
    time can so be read as a share of the machine's peak."""

    num_bytes: int
    num_flops: int


def as_tensors(returned: Any) -> tuple[Tensor, ...]:
    """A call's return value, one tensor or several."""
    return returned if isinstance(returned, tuple) else (returned,)


@dataclass(frozen=True, slots=True)
class Variant:
    """One contender, ready to run.

    Attributes:
        call: Does the work once; this is what is timed.
        results: From what `call` returned to everything the work must produce, in the order and shapes of ours. Not
            timed. Whoever writes in place names what it wrote to here.
        is_timed: False for a reference, which is there to be compared with only.
    """

    call: Callable[[], Any]
    results: Callable[[Any], tuple[Tensor, ...]] = as_tensors
    is_timed: bool = True


def compiled(function: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    """`torch.compile` that raises RuntimeError where torch would silently run the function itself, as it does when
    compiling is switched off."""

    def only_compiled() -> Any:
        # True while torch traces this, so no trace of the question is left in the compiled code.
        if not torch.compiler.is_compiling():
            raise RuntimeError("fell back to eager: torch ran it uncompiled")
        return function()

    return torch.compile(only_compiled, fullgraph=True, **options)  # parts of it may not run uncompiled either


# Makes a contender with buffers of its own, when its turn comes: all of them at once would not fit.
MakeVariant = Callable[[], Variant]


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One row of the table.

    Attributes:
        kernel, label: What is measured, at which size.
        work: Least bytes and operations, whoever computes it.
        make_variants: Allocates the inputs and returns name -> how to make that contender, ours first.
        tolerance: How far a right answer may be from ours (see `difference`).
        only_reads: Whether it writes next to nothing, so that reading, not copying, is its roof.
        chunks: Attention's (tokens to compute, tokens with those before) per sequence.
    """

    kernel: str
    label: str
    work: Work
    make_variants: Callable[[], dict[str, MakeVariant]]
    tolerance: float
    only_reads: bool = False
    chunks: tuple[tuple[int, int], ...] = ()


def difference(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest relative L2 distance of a row (a last dimension) from its counterpart; inf if shapes differ or a
    value is not finite.

    By rows, because one wrong row of thousands must not be averaged away, and relative to that row, because attention
    over many keys gives small values.
    """
    if [tensor.shape for tensor in found] != [tensor.shape for tensor in expected]:
        return float("inf")
    return max((_row_difference(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)


def _row_difference(found: Tensor, expected: Tensor) -> float:
    if found.numel() == 0:
        return 0.0
    distance = (found.float() - expected.float()).norm(dim=-1)
    relative = torch.where(distance == 0, 0.0, distance / expected.float().norm(dim=-1))
    return relative.nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()
