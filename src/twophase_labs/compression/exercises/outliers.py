"""6.5 and 6.6: activations in int8, and outliers moved into the weights before that."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.compression.exercises.rounding import FiniteOnly
from twophase_labs.machine.checks import Draw, compare, plain, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise

PRODUCTS = cases(num_tokens=(1, 3, 9), num_inputs=(4, 8, 600), num_outputs=(1, 5, 33))

LINEAR = exercise(
    "6.5", "A product in int8", "int8_linear", points=3, minutes=7, lines=4, difficulty=2, time_limit_s=20
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


SMOOTH = exercise(
    "6.6", "Smoothing", "smooth", points=3, minutes=9, lines=5, difficulty=2, is_extra=True, time_limit_s=20
)
SMOOTH.objective = "move outliers from the activations into the weights, the products unchanged"
SMOOTH.hints = (
    "A factor for each input: dividing the norm's weight by it divides what comes out of the norm, and multiplying "
    "the weights' columns by it undoes that. `w * factors` multiplies column i by factor i.",
    "The largest magnitude of an input's weights is taken over the outputs of *all* the weights: they are given the "
    "same input, so they share its factor. `amax(0)` of each, then the larger.",
    "w_max = torch.stack([... for w in weights]).amax(0)\n"
    "factors = ...                                  # [I], by the formula\n"
    "factors = torch.where((x_max > 0) & (w_max > 0), factors, ...)\n"
    "return ..., [... for w in weights]",
)


def naive_factors(weights: list[Tensor], x_max: Tensor, alpha: float) -> list[float]:
    factors = []
    for i, largest in enumerate(x_max.tolist()):
        of_weights = max(abs(float(row[i])) for weight in weights for row in weight)
        usable = largest > 0 and of_weights > 0
        factors.append(largest**alpha / of_weights ** (1 - alpha) if usable else 1.0)
    return factors


def smoothing_case(draw: Draw, num_inputs: int, outputs: tuple[int, ...]) -> tuple[Tensor, list[Tensor], Tensor]:
    norm = draw.normal(num_inputs, dtype=torch.float64)
    weights = [draw.normal(n, num_inputs, dtype=torch.float64) * 2.0 ** draw.integer(-2, 3) for n in outputs]
    x_max = draw.uniform(num_inputs, low=0.01, high=30).double()
    x_max[0] = 1e-3  # so that a factor is below 1 ...
    weights[0][0, 0] = 2
    for weight in weights:
        weight[:, 1] *= 0.01  # ... and a weight's maximum, too
    if len(weights) > 1:  # the last input's largest weight is not in the first matrix
        weights[-1][0, -1] = 3 * torch.cat(weights)[:, -1].abs().max()
    return norm, weights, x_max


def smoothed(answer: Any, norm: Tensor, weights: list[Tensor], x_max: Tensor, alpha: float) -> tuple[Tensor, Any]:
    given = list(weights)
    with unchanged(norm_weight=norm, x_max=x_max, **{f"weights[{k}]": w for k, w in enumerate(weights)}):
        result = answer.smooth(norm, given, x_max, alpha)
    if len(given) != len(weights) or any(now is not before for now, before in zip(given, weights, strict=False)):
        reject("smooth put other tensors into the list of weights that it was given", "make a list of your own")
    if not isinstance(result, tuple | list) or len(result) != 2:
        reject("smooth must return two things: the norm's new weight and the list of new weights")
    new_norm, new_weights = result
    if not isinstance(new_weights, tuple | list) or len(new_weights) != len(weights):
        got = f"{len(new_weights)} of them" if isinstance(new_weights, tuple | list) else type(new_weights).__name__
        reject(f"{len(weights)} weights were given; smooth returned {got}")
    compare(new_norm * 0, norm * 0, what="the norm's new weight times 0", axes=("input",))
    for number, (new, old) in enumerate(zip(new_weights, weights, strict=True)):
        compare(new * 0, old * 0, what=f"new weight {number} times 0", axes=("output", "input"))
    return new_norm, new_weights


@SMOOTH.check("leaves every product as it was", num_inputs=(3, 16), outputs=((2,), (8, 4, 4)))
def products_stay(answer: Any, draw: Draw, num_inputs: int, outputs: tuple[int, ...]) -> None:
    """What the norm's weight is divided by, each weight's column must be multiplied by, and with the same factor in
    all the weights."""
    norm, weights, x_max = smoothing_case(draw, num_inputs, outputs)
    new_norm, new_weights = smoothed(answer, norm, weights, x_max, 0.5)
    x = draw.normal(4, num_inputs, dtype=torch.float64)
    for number, (new, old) in enumerate(zip(new_weights, weights, strict=True)):
        what = f"what linear layer {number} gives after the norm"
        compare((x * new_norm) @ new.T, (x * norm) @ old.T, what=what, axes=("token", "output"))


@SMOOTH.check(
    "has the factors of the formula",
    num_inputs=(3, 12, 12, 5, 5),
    outputs=((2,), (6, 3, 3), (3, 6), (4, 4), (4, 4)),
    alpha=(0.5, 0.5, 0.8, 0.0, 1.0),
)
def has_the_factors(answer: Any, draw: Draw, num_inputs: int, outputs: tuple[int, ...], alpha: float) -> None:
    """x_max to the power of alpha, over w_max to the power of 1 - alpha; w_max is the largest magnitude among all
    weights of that input, in whichever matrix it is, negative ones too."""
    norm, weights, x_max = smoothing_case(draw, num_inputs, outputs)
    new_norm, _ = smoothed(answer, norm, weights, x_max, alpha)
    expected = torch.tensor(naive_factors(weights, x_max, alpha), dtype=torch.float64)
    what = f"the factors for alpha = {alpha} and {len(outputs)} weights (the norm's weight, old over new)"
    compare(norm / new_norm, expected, what=what, axes=("input",))


@SMOOTH.check("makes inputs and weights equally large at 0.5", num_inputs=(2, 20))
def sizes_meet(answer: Any, draw: Draw, num_inputs: int) -> None:
    """At alpha 0.5 both maxima become the square root of x_max times w_max."""
    # At alpha 0.5 an input's new maximum is its weights' new maximum; both recomputed from the result.
    norm, weights, x_max = smoothing_case(draw, num_inputs, (5, 3))
    new_norm, new_weights = smoothed(answer, norm, weights, x_max, 0.5)
    of_weights = torch.cat([new.abs() for new in new_weights]).amax(0)
    of_inputs = x_max * (new_norm / norm)
    what = "at alpha = 0.5, the inputs' new maxima over the weights' new maxima"
    compare(of_inputs / of_weights, torch.ones_like(x_max), what=what, axes=("input",))


@SMOOTH.check("leaves unused inputs alone", alpha=(0.5, 0.8, 0.0))
def unused_inputs(answer: Any, draw: Draw, alpha: float) -> None:
    """Where x_max or w_max is 0 the formula divides by 0 or gives the factor 0; there the factor is 1."""
    # An input that is always 0, and one that no weight uses.
    norm, weights, x_max = smoothing_case(draw, 5, (4, 2))
    x_max[0], x_max[1] = 1e-12, 0  # little is not nothing
    for weight in weights:
        weight[:, 3] = 0
    new_norm, new_weights = smoothed(answer, norm, weights, x_max, alpha)
    expected = norm / torch.tensor(naive_factors(weights, x_max, alpha), dtype=torch.float64)
    what = f"the norm's new weight for alpha = {alpha}, where input 1 is always 0 and no weight uses input 3,"
    compare(new_norm, expected, what=what, axes=("input",))
    for number, (new, old) in enumerate(zip(new_weights, weights, strict=True)):
        what = f"weight {number}'s columns of unused inputs"
        compare(new[:, [1, 3]], old[:, [1, 3]], what=what, axes=("output", "column"))
