"""6.4: activations in int8."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.compression.exercises.rounding import FiniteOnly
from twophase_labs.machine.checks import Draw, compare, plain, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise

PRODUCTS = cases(num_tokens=(1, 3, 9), num_inputs=(4, 8, 600), num_outputs=(1, 5, 33))

LINEAR = exercise(
    "6.4", "A product in int8", "int8_linear", points=3, minutes=12, lines=4, difficulty=2, time_limit_s=20
)
LINEAR.objective = "multiply activations in int8 by weights in int8, with a scale per token and one per output"
LINEAR.hints = (
    "A token's scale makes its largest magnitude 127. `amax(dim=1, keepdim=True)` keeps the axis, so that [T, 1] "
    "divides [T, I].",
    "A product of two codes needs up to 15 bits, a sum of a thousand of them 24: int8 cannot hold it. "
    "`torch._int_mm` takes int8 and adds in int32; it wants [T, I] and [I, O].",
    "Code times scale is what was meant: the sum of products of codes is off by both scales. One is [T, 1], the "
    "other [O]: both broadcast to [T, O].",
)

INT8_MAX = 127


def product(answer: Any, x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    with unchanged(x=x, codes=codes, scales=scales):
        got: Tensor = answer.int8_linear(x, codes, scales)
    return got


def stored_weight(draw: Draw, num_outputs: int, num_inputs: int) -> tuple[Tensor, Tensor]:
    codes = draw.integers(-INT8_MAX, INT8_MAX + 1, num_outputs, num_inputs).to(torch.int8)
    return codes, draw.uniform(num_outputs, low=0.001, high=0.02)


@LINEAR.check("multiplies whole numbers exactly", *PRODUCTS)
def whole_numbers(answer: Any, draw: Draw, num_tokens: int, num_inputs: int, num_outputs: int) -> None:
    """A row that reaches 127 has the scale 1, and its codes are its elements. Do the sums fit into the dtype in
    which they are added up?"""
    # Rows of whole numbers that reach 127: rounding changes nothing, and the product is exact.
    x = draw.integers(-INT8_MAX, INT8_MAX + 1, num_tokens, num_inputs).float()
    x[:, draw.integer(0, num_inputs)] = INT8_MAX
    codes, scales = stored_weight(draw, num_outputs, num_inputs)
    expected = (x.double() @ codes.double().T * scales.double()).float()
    got = product(answer, x, codes, scales)
    compare(got, expected, what="the product of rows that int8 can hold", axes=("token", "output"), atol=1e-3)


def rounded_rows(x: Tensor) -> Tensor:
    """Element by element, in Python's numbers. Ties go to the even neighbour there, too."""
    rows = []
    for row in x.tolist():
        scale = max(abs(value) for value in row) / INT8_MAX
        rows.append([round(value / scale) * scale if scale else 0.0 for value in row])
    return torch.tensor(rows, dtype=torch.float64)


def clear_of_ties(draw: Draw, num_tokens: int, num_inputs: int, sizes: Tensor) -> Tensor:
    """Rows in which no element is so near to half a code that float32 decides."""
    while True:
        x = draw.normal(num_tokens, num_inputs) * sizes
        steps = x.double() / x.double().abs().amax(1, keepdim=True) * INT8_MAX
        if bool(((steps - steps.floor() - 0.5).abs() > 1e-4).all()):
            return x


@LINEAR.check("rounds each token with a scale of its own", *PRODUCTS)
def scale_per_token(answer: Any, draw: Draw, num_tokens: int, num_inputs: int, num_outputs: int) -> None:
    """The scale is the largest magnitude of this token's row over 127. Is the sign of the largest element lost, are
    codes rounded (not cut off), and does each row get its own scale back?"""
    # Tokens of very different sizes, one of them with a single large element; the largest may be negative.
    sizes = torch.tensor([10.0 ** draw.integer(-3, 4) for _ in range(num_tokens)])[:, None]
    sizes[-1] = 1e-4
    x = clear_of_ties(draw, num_tokens, num_inputs, sizes)
    x[0] -= x[0, 0] + 30 * sizes[0] * (torch.arange(num_inputs) == 0)
    x = torch.where((rounded_rows(x) - x).abs() < 0.499 * x.abs().amax(1, keepdim=True) / INT8_MAX, x, 0 * x)
    codes, scales = stored_weight(draw, num_outputs, num_inputs)
    expected = rounded_rows(x) @ codes.double().T * scales.double()
    got = product(answer, x, codes, scales)
    if isinstance(got, torch.Tensor) and got.shape == expected.shape:
        largest = x.double().abs().amax(1, keepdim=True)  # so that each row counts alike
        got, expected = got.double() / largest, expected / largest
    what = "the product, each row divided by its token's largest magnitude,"
    compare(got, expected, what=what, axes=("token", "output"), rtol=1e-4, atol=1e-4, any_dtype=True)


@LINEAR.check("gives zeros for a token of zeros", num_inputs=(4, 64))
def zeros_stay_zeros(answer: Any, draw: Draw, num_inputs: int) -> None:
    """Its scale is 0, and 0 / 0 is NaN: keep the scale above 0, as with `clamp(min=1e-30)`."""
    # A token of zeros between others.
    x = draw.normal(3, num_inputs)
    x[1] = 0
    codes, scales = stored_weight(draw, 4, num_inputs)
    with FiniteOnly():
        got = product(answer, x, codes, scales)
    if not isinstance(got, torch.Tensor) or list(got.shape) != [3, 4]:
        reject(f"int8_linear returned {plain(got)!r}, expected a tensor [3, 4]")
    compare(got[1], torch.zeros(4), what="the output of a token that is all zeros", axes=("output",))


@LINEAR.check("computes a token alike whatever is beside it", num_inputs=(16, 200))
def does_not_look_aside(answer: Any, draw: Draw, num_inputs: int) -> None:
    """Nothing of one token may depend on another: no maximum over all rows."""
    # A token's row is the same with and without others beside it, bit for bit.
    x, (codes, scales) = draw.normal(5, num_inputs), stored_weight(draw, 6, num_inputs)
    x[3] *= 1000
    alone = product(answer, x[:1].clone(), codes, scales)
    beside = product(answer, x, codes, scales)
    compare(beside[:1], alone, what="a token's output beside others", axes=("token", "output"), rtol=0, atol=0)
