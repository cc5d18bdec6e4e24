"""2.2 What a prefill costs: operations, bytes, and which of the two a machine runs out of."""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import Test, cases, exercise
from twophase_labs.machine.questions import Number
from twophase_labs.prefill.model_shape import ModelShape

A100_FLOPS, A100_BYTES = 312e12, 1.555e12  # per second: half precision in tensor cores; memory of the 40 GB card
PRODUCTS = (
    {"rows": 1, "inner": 1, "columns": 1, "bytes_per_element": 2},
    {"rows": 1, "inner": 5, "columns": 3, "bytes_per_element": 2},
    {"rows": 7, "inner": 5, "columns": 3, "bytes_per_element": 4},
    {"rows": 2, "inner": 576, "columns": 1536, "bytes_per_element": 2},
    {"rows": 3, "inner": 4, "columns": 6, "bytes_per_element": 1},
)
PREFILLS = cases(num_layers=(1, 1, 4, 2), num_tokens=(1, 6, 3, 150))

COST = exercise(
    "2.2", "FLOPs and bytes of a prefill", "matmul_cost prefill_cost", points=4, minutes=8, lines=6, difficulty=2
)
COST.objective = "count the operations and the bytes of a prefill"
COST.hints = (
    "Start with one element of a result of [rows, columns]: it is a sum of `inner` products.",
    "Bytes: each of the three matrices is moved once. Which sizes do they have?",
    "Attention: the query at position p meets p + 1 keys. For each such pair, and each head, D products go into the "
    "score and D into the sum of values. Its bytes: queries and results [L, H, D], keys and values [L, H_kv, D].",
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


def enumerated(shape: ModelShape, num_tokens: int, bytes_per_element: int) -> tuple[int, int]:
    """A prefill written down piece by piece: every product, and attention query by query."""
    flops = num_bytes = 0
    for _ in range(shape.num_layers):
        for inner, columns in shape.projections.values():
            of_product = pytorch_counts(num_tokens, inner, columns, bytes_per_element)
            flops, num_bytes = flops + of_product[0], num_bytes + of_product[1]
        for token in range(num_tokens):
            for _ in range(shape.num_heads):
                flops += 2 * shape.head_dim * (token + 1)  # its scores
                flops += 2 * shape.head_dim * (token + 1)  # the sum of values
            num_bytes += 2 * shape.num_heads * shape.head_dim * bytes_per_element  # query in, result out
            num_bytes += 2 * shape.num_kv_heads * shape.head_dim * bytes_per_element  # key and value in
    last = pytorch_counts(1, shape.hidden, shape.vocab, bytes_per_element)
    return flops + last[0], num_bytes + last[1]


def some_shape(draw: Draw, num_layers: int, group: int) -> ModelShape:
    kv = draw.integer(1, 4)
    return ModelShape(
        num_layers,
        hidden=draw.integer(4, 9),
        mlp=draw.integer(10, 20),
        num_heads=group * kv,
        num_kv_heads=kv,
        head_dim=draw.integer(2, 6),
        vocab=draw.integer(30, 50),
    )


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


def counts_a_prefill(which: int) -> Test:
    """FLOPs (0) or bytes (1) of a whole prefill."""

    def test(answer: Any, draw: Draw, num_layers: int, num_tokens: int) -> None:
        for bytes_per_element, group in ((2, 3), (4, 2), (1, 5)):  # a fixed share of the heads is wrong in one of them
            shape = some_shape(draw, num_layers, group)
            got = pair(answer.prefill_cost(shape, num_tokens, bytes_per_element))[which]
            expected = enumerated(shape, num_tokens, bytes_per_element)[which]
            layers = f"{num_layers} layer{'s' * (num_layers != 1)}"
            tokens = f"{num_tokens} token{'s' * (num_tokens != 1)}"
            what = f"the number of {('FLOPs', 'bytes')[which]} of {tokens} through {layers}"
            compare(
                float(got), float(expected), what=f"{what}, with elements of {bytes_per_element} bytes, of {shape},"
            )

    return test


COST.check(
    "counts the FLOPs of a prefill",
    *PREFILLS,
    hint="Per layer: the projections, and 4 * H * D for each pair of a query and a key that it sees (a token sees "
    "itself). Then one row of logits.",
)(counts_a_prefill(0))
COST.check(
    "counts the bytes of a prefill",
    *PREFILLS,
    hint="Per layer: the projections' bytes, then attention's: queries in and results out have H heads, keys and "
    "values H_kv.",
)(counts_a_prefill(1))


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
