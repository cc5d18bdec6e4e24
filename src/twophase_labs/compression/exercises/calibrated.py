"""6.5 and 6.6: weights rounded with a look at their inputs: AWQ and GPTQ."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import exercise

DAMPING, SMALLEST = 0.01, 1e-4


def to_nearest(weight: Tensor, bits: int, group_size: int) -> Tensor:
    """Row by row, group by group, in float64."""
    top, rows = 2**bits - 1, []
    for row in weight.double().tolist():
        new: list[float] = []
        for start in range(0, len(row), group_size):
            group = row[start : start + group_size]
            low, scale = min(group), (max(group) - min(group)) / top
            new += [low + round((value - low) / scale) * scale if scale else low for value in group]
        rows.append(new)
    return torch.tensor(rows, dtype=torch.float64)


def output_error(rounded: Tensor, weight: Tensor, x: Tensor) -> float:
    """Sum of squares."""
    return float((x.double() @ (rounded.double() - weight.double()).T).square().sum())


def right_factors(x: Tensor, alpha: float) -> Tensor:
    """Input by input, in Python's floats."""
    means = [max(sum(abs(v) for v in column) / len(column), SMALLEST) for column in x.double().T.tolist()]
    powers = [mean**alpha for mean in means]
    middle = math.sqrt(max(powers) * min(powers))
    return torch.tensor([power / middle for power in powers], dtype=torch.float64)


def candidates(
    weight: Tensor, x: Tensor, bits: int, group_size: int, num_steps: int, further: int = 0
) -> tuple[list[Tensor], Tensor, Tensor]:
    """The factors of each alpha, and the output's error with them: squares added up, magnitudes added up.

    `further` steps go beyond alpha 1.
    """
    tried = [right_factors(x, step / (num_steps - 1)) for step in range(num_steps + further)]
    off = [to_nearest(weight * factor, bits, group_size) / factor - weight.double() for factor in tried]
    left = [x.double() @ each.T for each in off]
    return tried, torch.stack([d.square().sum() for d in left]), torch.stack([d.abs().sum() for d in left])


def best_of(errors: Tensor) -> tuple[int, float]:
    """Which is the smallest, and how many times as large the next one is."""
    return int(errors.argmin()), float(errors.sort().values[1] / errors.min())


def awq_case(
    draw: Draw, num_inputs: int, num_outputs: int, bits: int, group_size: int, num_steps: int,
    wants: range | None = None, spread: float = 1.5, norms_agree: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """weight, x, and the best factors: better by a margin that float32 cannot change; of a step in `wants`.

    By the sum of magnitudes the same ones are best, or others are.
    """
    while True:
        weight = draw.normal(num_outputs, num_inputs)
        x = draw.normal(12, num_inputs) * (spread * draw.normal(num_inputs)).exp()
        tried, squares, magnitudes = candidates(weight, x, bits, group_size, num_steps)
        (best, margin), (other, other_margin) = best_of(squares), best_of(magnitudes)
        if min(margin, other_margin) > 1.02 and (best == other) is norms_agree and (wants is None or best in wants):
            return weight, x, tried[best]


def searched(answer: Any, weight: Tensor, x: Tensor, bits: int, group_size: int, num_steps: int) -> Tensor:
    with unchanged(weight=weight, x=x):
        got: Tensor = answer.awq(weight, x, bits, group_size, num_steps)
    if isinstance(got, torch.Tensor) and got.ndim == 0:
        reject("awq returned a single number, expected a factor for each input, [I]")
    return got


AWQ = exercise("6.5", "Weights that matter", "awq", points=4, minutes=16, lines=8, difficulty=2, uses=("6.2",))
AWQ.time_limit_s = 30
AWQ.objective = "find the factors that make the output's error small after rounding"
AWQ.hints = (
    "One alpha at a time: factors, then the weight whose columns are multiplied by them, rounded, and the columns "
    "divided again. Compare `x @ rounded.T` with `x @ weight.T`.",
    "`step / (num_steps - 1)` goes from 0 to 1. Keep the best error so far, and the factors that gave it.",
    "wanted, best_error, best = x @ weight.T, torch.inf, None\n"
    "for step in range(num_steps):\n"
    "    factors = factors_of(x, ...)\n"
    "    rounded = dequantize(*quantize(weight * factors, bits, group_size)) / ...\n"
    "    error = ...                       # a number\n"
    "    if error < best_error:\n"
    "        best_error, best = error, factors\n"
    "return best",
)


@AWQ.check(
    "finds the factors with the smallest error of the output",
    {"num_inputs": 4, "group_size": 4, "bits": 3, "num_steps": 3},
    {"num_inputs": 8, "group_size": 4, "bits": 3, "num_steps": 11, "wants": range(1, 5)},
    {"num_inputs": 8, "group_size": 4, "bits": 3, "num_steps": 11, "wants": range(6, 11)},
    {"num_inputs": 16, "group_size": 8, "bits": 2, "num_steps": 6},
)
def finds_the_best(
    answer: Any, draw: Draw, num_inputs: int, group_size: int, bits: int, num_steps: int, wants: range | None = None
) -> None:
    """Does alpha go from 0 to 1, both among the num_steps values? The error is that of the output on x, not of the
    weight. Columns are multiplied before rounding and divided afterwards."""
    weight, x, expected = awq_case(draw, num_inputs, 6, bits, group_size, num_steps, wants)
    got = searched(answer, weight, x, bits, group_size, num_steps)
    what = f"the best factors of {num_steps} ({bits} bits, groups of {group_size} of {num_inputs} inputs)"
    compare(got, expected.float(), what=what, axes=("input",), rtol=1e-3)


@AWQ.check("tries alpha 0 and alpha 1")
def ends_count(answer: Any, draw: Draw) -> None:
    """With two steps alpha is 0, then 1."""
    # Two steps are alpha 0 and alpha 1, and either can be best; alpha 2, which would be better still, is not tried.
    for best in (0, 1):
        while True:
            weight, x, expected = awq_case(draw, 8, 4, 3, 4, 2, range(best, best + 1), spread=0.5)
            errors = candidates(weight, x, 3, 4, 2, further=1)[1]
            if best == 0 or errors[2] < 0.98 * errors[1]:
                break
        got = searched(answer, weight, x, 3, 4, 2)
        what = f"the best factors of two steps, where alpha = {best} is better"
        compare(got, expected.float(), what=what, axes=("input",), rtol=1e-3)


@AWQ.check("tries eleven steps unless it is told otherwise")
def eleven_steps(answer: Any, draw: Draw) -> None:
    """`num_steps=11`: alpha is 0, 0.1, ..., 1."""
    # The number of steps left out.
    weight, x, expected = awq_case(draw, 8, 4, 3, 4, 11, range(1, 10))
    got = answer.awq(weight, x, 3, 4)
    compare(got, expected.float(), what="the best factors of eleven", axes=("input",), rtol=1e-3)


@AWQ.check("goes by the sum of the squared errors")
def squares_the_error(answer: Any, draw: Draw) -> None:
    """Square the differences of the outputs before you add them up: a large one counts for more than two of half
    its size."""
    weight, x, expected = awq_case(draw, 8, 4, 3, 4, 5, norms_agree=False)
    got = searched(answer, weight, x, 3, 4, 5)
    what = "the best factors of 5, where the sum of the errors' magnitudes would choose others,"
    compare(got, expected.float(), what=what, axes=("input",), rtol=1e-3)


GPTQ = exercise("6.6", "Column by column", "gptq", points=4, minutes=15, lines=3, difficulty=2, time_limit_s=30)
GPTQ.objective = "round a weight column by column, each error made up for by the columns to come"
GPTQ.hints = (
    "Column i of w is rounded *as it is now*. Which codes may a group's weight have, and what if the nearest is none "
    "of them?",
    "`clamp` keeps codes within 0 and 2**bits - 1. e is one number per output: how far the rounded column is off, "
    "divided by U[i, i].",
    "codes = nearest_codes.clamp(...)\n"
    "error = (... - rounded[:, i]) / ...\n"
    "change = torch.outer(..., ...)      # column j > i loses e * U[i, j]",
)


@dataclass(frozen=True)
class OneByOne:
    """What the elimination gives: the rounded weight, how near a code came to a tie, codes that had to be clamped."""

    rounded: Tensor
    nearest_tie: float
    num_below: int
    num_above: int

    @property
    def is_clamped(self) -> bool:
        return self.num_below + self.num_above > 0


def damped(x: Tensor) -> Tensor:
    """x^T x in float64, with 1 % of its diagonal's mean on its diagonal."""
    hessian = torch.einsum("ti,tj->ij", x.double(), x.double())
    return hessian + DAMPING * hessian.trace() / len(hessian) * torch.eye(len(hessian))


def one_by_one(weight: Tensor, x: Tensor, bits: int, group_size: int) -> OneByOne:
    """Optimal brain surgeon, without Cholesky: each column leaves the inverse by elimination."""
    x, w = x.double(), weight.double().clone()
    inverse = torch.linalg.pinv(damped(x))
    rounded, nearest_tie, top, below, above = torch.zeros_like(w), 1.0, 2**bits - 1, 0, 0
    for i in range(w.shape[1]):
        if i % group_size == 0:
            low, high = w[:, i : i + group_size].min(1).values, w[:, i : i + group_size].max(1).values
        for o in range(len(w)):
            scale = float(high[o] - low[o]) / top
            steps = float(w[o, i] - low[o]) / scale if scale else 0.0
            nearest_tie = min(nearest_tie, abs(steps - math.floor(steps) - 0.5))
            below, above = below + (round(steps) < 0), above + (round(steps) > top)
            rounded[o, i] = low[o] + min(max(round(steps), 0), top) * scale
        w -= torch.outer((w[:, i] - rounded[:, i]) / inverse[i, i], inverse[i])
        inverse = inverse - torch.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return OneByOne(rounded, nearest_tie, below, above)


def upper_factor(x: Tensor) -> Tensor:
    """float32 [I, I], upper triangular: its transpose times itself is the inverse of the damped x^T x."""
    # The Cholesky factor of the reversed matrix, reversed again, is upper triangular, and so is its inverse.
    return torch.linalg.inv(torch.linalg.cholesky(damped(x).flip(0, 1)).flip(0, 1)).float()


def columns(answer: Any, weight: Tensor, x: Tensor, bits: int, group_size: int) -> Tensor:
    upper = upper_factor(x)
    with unchanged(weight=weight, upper=upper):
        got: Tensor = answer.gptq(weight, upper, bits, group_size)
    if isinstance(got, torch.Tensor) and got.shape == weight.shape:
        finite(got, "the rounded weight", ("output", "input"))
    return got


def related(draw: Draw, num_tokens: int, num_inputs: int, own: float = 0.3) -> Tensor:
    """Inputs that depend on each other, as a text's do."""
    common = draw.normal(num_tokens, max(1, num_inputs // 4)) @ draw.normal(max(1, num_inputs // 4), num_inputs)
    return common + own * draw.normal(num_tokens, num_inputs)


@GPTQ.check(
    "rounds to nearest where inputs are independent", num_inputs=(4, 12, 10), group_size=(4, 4, 5), bits=(2, 3, 4)
)
def independent_inputs(answer: Any, draw: Draw, num_inputs: int, group_size: int, bits: int) -> None:
    """With U a multiple of the identity no column changes another: each is rounded to the nearest of 2^bits values
    from its group's minimum to its maximum."""
    # x^T x is a multiple of the identity: no column can make up for another.
    weight = draw.normal(5, num_inputs)
    got = columns(answer, weight, 3 * torch.eye(num_inputs), bits, group_size)
    expected = to_nearest(weight, bits, group_size).float()
    what = "the rounded weight for independent inputs"
    compare(got, expected, what=what, axes=("output", "input"), same_dtype=True)


def matches(answer: Any, weight: Tensor, x: Tensor, bits: int, group_size: int, expected: Tensor) -> None:
    got = columns(answer, weight, x, bits, group_size)
    what = f"the rounded weight ({bits} bits, {len(x.T)} inputs in groups of {group_size}, {len(x)} tokens)"
    compare(got, expected.float(), what=what, axes=("output", "input"), rtol=1e-3, atol=1e-4)


@GPTQ.check("makes up for errors in the columns to come", num_inputs=(3, 6, 8), bits=(2, 2, 3))
def passes_errors_on(answer: Any, draw: Draw, num_inputs: int, bits: int) -> None:
    """Row i of U, divided by its diagonal element, says how column i's error is shared out among the later ones."""
    # One group. No code is clamped and no rounding is near a tie: that comes later.
    # Twice, with the same sizes and other numbers.
    for _ in range(2):
        while True:
            weight, x = draw.normal(3, num_inputs), related(draw, 4 * num_inputs, num_inputs, own=1.0)
            right = one_by_one(weight, x, bits, num_inputs)
            changes = not torch.equal(right.rounded, to_nearest(weight, bits, num_inputs))
            if changes and right.nearest_tie > 1e-3 and not right.is_clamped:
                break
        matches(answer, weight, x, bits, num_inputs, right.rounded)


@GPTQ.check("takes a group's range when the group begins", num_inputs=(4, 9), group_size=(2, 3), bits=(2, 3))
def begins_groups(answer: Any, draw: Draw, num_inputs: int, group_size: int, bits: int) -> None:
    """Minimum and maximum are those of the weights as the earlier columns' errors have left them, once for each
    group; the errors go on into later groups."""
    while True:
        weight, x = draw.normal(2, num_inputs), related(draw, 9 * num_inputs, num_inputs, own=1.0)
        right = one_by_one(weight, x, bits, group_size)
        if right.nearest_tie > 1e-3 and not right.is_clamped:
            break
    matches(answer, weight, x, bits, group_size, right.rounded)


@GPTQ.check("stays within the group's 2^bits values", num_inputs=(8, 12), group_size=(8, 6), bits=(2, 3))
def stays_on_the_grid(answer: Any, draw: Draw, num_inputs: int, group_size: int, bits: int) -> None:
    """A weight that was pushed beyond its group's range gets the first or the last code: clamp the codes."""
    # Inputs that nearly repeat each other push weights beyond their group's range, both ways.
    while True:
        weight, x = draw.normal(4, num_inputs), related(draw, 40, num_inputs)
        right = one_by_one(weight, x, bits, group_size)
        if right.nearest_tie > 1e-3 and right.num_below and right.num_above:
            break
    matches(answer, weight, x, bits, group_size, right.rounded)


@GPTQ.check("keeps groups whose weights are all the same", group_size=(4, 8))
def constant_groups(answer: Any, draw: Draw, group_size: int) -> None:
    """Such a group has the scale 0, and 0 / 0 is NaN."""
    weight = draw.normal(3, 2 * group_size)
    weight[0, :group_size], weight[2] = 0.5, 0.0
    got = columns(answer, weight, related(draw, 30, 2 * group_size), 3, group_size)
    if not isinstance(got, torch.Tensor) or got.shape != weight.shape:
        compare(got, weight, what="the rounded weight", axes=("output", "input"))
    what = "the first group, of equal weights,"
    compare(got[0, :group_size], weight[0, :group_size], what=what, axes=("input",))
    compare(got[2], weight[2], what="an output whose weights are all 0", axes=("input",))


@GPTQ.check(
    "bears inputs that nearly repeat each other",
    num_tokens=(300, 40),
    num_inputs=(144, 64),
    rank=(16, 8),
    own=(0.1, 0.01),
)
def large_problem(answer: Any, draw: Draw, num_tokens: int, num_inputs: int, rank: int, own: float) -> None:
    """Elements of U then differ very much in size. Is every error divided by U[i, i] and passed on by all of the
    row behind it?"""
    # The error over all outputs, against the elimination's. Inputs span a few directions and hardly any others.
    x = draw.normal(num_tokens, rank) @ draw.normal(rank, num_inputs) + own * draw.normal(num_tokens, num_inputs)
    x[:, 1] = 0
    weight, group_size = draw.normal(3, num_inputs), 16
    got = columns(answer, weight, x, 3, group_size)
    compare(got * 0, weight * 0, what="the rounded weight times 0", axes=("output", "input"))
    best = one_by_one(weight, x, 3, group_size).rounded
    error, expected = output_error(got, weight, x), output_error(best, weight, x)
    plain = output_error(to_nearest(weight, 3, group_size), weight, x)
    if error > 1.3 * expected:
        reject(
            f"the output's squared error is {error / plain:.1%} of that of rounding to nearest; it should be about "
            f"{expected / plain:.1%}",
            f"{num_tokens} tokens, {num_inputs} inputs; input 1 is always 0",
        )
