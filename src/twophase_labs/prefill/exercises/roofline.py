"""2.2 What a prefill costs: operations, bytes, and which of the two a machine runs out of."""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import Test, exercise
from twophase_labs.machine.questions import Number

A100_FLOPS, A100_BYTES = 312e12, 1.555e12  # per second: half precision in tensor cores; memory of the 40 GB card
PRODUCTS = (
    {"rows": 1, "inner": 1, "columns": 1, "bytes_per_element": 2},
    {"rows": 1, "inner": 5, "columns": 3, "bytes_per_element": 2},
    {"rows": 7, "inner": 5, "columns": 3, "bytes_per_element": 4},
    {"rows": 2, "inner": 576, "columns": 1536, "bytes_per_element": 2},
    {"rows": 3, "inner": 4, "columns": 6, "bytes_per_element": 1},
)

COST = exercise("2.2", "FLOPs and bytes of a product", "matmul_cost", points=2, minutes=3, lines=2)
COST.objective = "count the operations and the bytes of a matrix product"
COST.hints = (
    "Start with one element of a result of [rows, columns]: it is a sum of `inner` products.",
    "Bytes: each of the three matrices is moved once. Which sizes do they have?",
)


def pytorch_counts(rows: int, inner: int, columns: int, bytes_per_element: int) -> tuple[int, int]:
    """PyTorch's own counter over a product of tensors without contents, and the sizes of its three tensors."""
    dtype = {1: torch.int8, 2: torch.float16, 4: torch.float32}[bytes_per_element]
    a, b = torch.empty(rows, inner, device="meta"), torch.empty(inner, columns, device="meta")
    with FlopCounterMode(display=False) as counter:
        c = a @ b
    return counter.get_total_flops(), sum(x.numel() * dtype.itemsize for x in (a, b, c))


def pair(got: Any) -> tuple[Any, Any]:
    if not (isinstance(got, tuple | list) and len(got) == 2):
        reject(f"the result is {got!r}, expected two numbers: FLOPs and bytes")
    return got[0], got[1]


def counts_a_product(which: int) -> Test:
    """FLOPs (0) or bytes (1) of one matrix product."""

    def test(answer: Any, draw: Draw, rows: int, inner: int, columns: int, bytes_per_element: int) -> None:
        got = pair(answer.matmul_cost(rows, inner, columns, bytes_per_element))[which]
        expected = pytorch_counts(rows, inner, columns, bytes_per_element)[which]
        what = f"the number of {('FLOPs', 'bytes')[which]} of [{rows}, {inner}] @ [{inner}, {columns}]"
        compare(float(got), float(expected), what=what)

    return test


COST.check(
    "counts the FLOPs of a product",
    *PRODUCTS,
    hint="An element of the result takes `inner` multiplications and as many additions; by convention that is 2 * "
    "inner FLOPs.",
)(counts_a_product(0))
COST.check(
    "counts the bytes of a product",
    *PRODUCTS,
    hint="Two matrices are read and one is written; each element has `bytes_per_element` bytes.",
)(counts_a_product(1))


def times_the_ridge() -> float:
    """Intensity of [512, 4096] @ [4096, 4096] in two-byte elements, over an A100's ridge."""
    numbers = 512 * 4096 + 4096 * 4096 + 512 * 4096
    return 2 * 512 * 4096 * 4096 / (2 * numbers) / (A100_FLOPS / A100_BYTES)


GUESS_2_3 = exercise("2.3", "Which side of the ridge?", kind="prediction", points=1, minutes=3)
GUESS_2_3.objective = "tell from an intensity what limits a step on a given GPU"
GUESS_2_3.hints = (
    "The ridge is FLOP per second over bytes per second.",
    "The weights are 4096 * 4096 elements, the tokens 512 * 4096 in and as many out. Two FLOP per weight and token.",
)
GUESS_2_3.question = Number(
    times_the_ridge,
    factor=1.2,
    unit="times the ridge",
    hint="Intensity = 2 * 512 * 4096 * 4096 FLOP over 2 bytes times (512 * 4096 * 2 + 4096 * 4096); the ridge "
    "is 312e12 / 1.555e12.",
)
