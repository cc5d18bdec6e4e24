"""6.14 and 6.15 A student's loss, and rounding that can be trained through."""

import math
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import exercise

LOSS = exercise("6.14", "What the teacher thinks", "distillation_loss", points=3, minutes=7, lines=4, difficulty=2)
LOSS.objective = "train on the teacher's whole distribution, not on the token that it happened to draw"
LOSS.hints = (
    "Both logits are divided by T before their softmax. The divergence of p (teacher) from q (student) is the sum "
    "over tokens of p (log p - log q).",
    "`log_softmax` never takes the logarithm of 0. The sum is over the last axis, the mean over all others; "
    "`detach()` on the teacher's side.",
    "log_p = F.log_softmax(teacher_logits.detach() / temperature, dim=-1)\n"
    "log_q = ...\n"
    "divergence = ...                  # one for each position: sum over the tokens\n"
    "return temperature**2 * divergence.mean()",
)


def loss_of(answer: Any, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    with unchanged(student_logits=student, teacher_logits=teacher):
        got = answer.distillation_loss(student, teacher, temperature)
    if not isinstance(got, torch.Tensor) or got.ndim != 0:
        shape = f"a tensor {list(got.shape)}" if isinstance(got, torch.Tensor) else type(got).__name__
        reject(f"distillation_loss returned {shape}, expected a tensor of one element, without axes")
    return got


def oracle(student: Tensor, teacher: Tensor, temperature: float) -> float:
    """Position by position, in Python's floats."""
    total, rows = 0.0, list(zip(student.flatten(0, -2).tolist(), teacher.flatten(0, -2).tolist(), strict=True))
    for own, other in rows:
        log_q, log_p = (log_softmax([z / temperature for z in logits]) for logits in (own, other))
        total += sum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))
    return temperature**2 * total / len(rows)


def log_softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    lse = largest + math.log(sum(math.exp(z - largest) for z in logits))
    return [z - lse for z in logits]


def pair(draw: Draw, *shape: int) -> tuple[Tensor, Tensor]:
    return 2 * draw.normal(*shape), 3 * draw.normal(*shape)


@LOSS.check("is zero for a student like its teacher", num_types=(9, 49_152), atol=(1e-5, 1e-4))
def is_zero_for_a_copy(answer: Any, draw: Draw, num_types: int, atol: float) -> None:
    """KL(p || q) is 0 where q = p: p log p is part of it, a cross-entropy alone is not zero. Nothing is added to a
    probability."""
    # Also where one adds the same number to all of a position's logits: that changes no probability.
    # What 1e-8 more in each of 49,152 logarithms' arguments adds up to is 5e-4.
    teacher = 3 * draw.normal(4, num_types)
    for student in (teacher.clone(), teacher + 2 * draw.normal(4, 1)):
        got = loss_of(answer, student, teacher, 1.0)
        what = f"the loss of a student with the teacher's probabilities, {num_types} tokens,"
        compare(float(got), 0.0, what=what, atol=atol)


@LOSS.check("is the divergence from teacher to student", num_positions=(1, 5), num_types=(3, 11))
def is_the_divergence(answer: Any, draw: Draw, num_positions: int, num_types: int) -> None:
    """Sum p (log p - log q) over the tokens, with p the teacher's: each token weighs what the teacher gives it.
    Then the mean over positions, not over tokens."""
    student, teacher = pair(draw, num_positions, num_types)
    got = float(loss_of(answer, student, teacher, 1.0))
    what = f"the loss at {num_positions} position{'s' * (num_positions > 1)}, temperature 1,"
    compare(got, oracle(student, teacher, 1.0), what=what, rtol=1e-4, atol=1e-5)


@LOSS.check("takes a temperature", temperature=(2.0, 0.5))
def softens_both(answer: Any, draw: Draw, temperature: float) -> None:
    """Both sides' logits are divided by T, and the result is multiplied by T squared."""
    student, teacher = pair(draw, 3, 8)
    got = float(loss_of(answer, student, teacher, temperature))
    compare(got, oracle(student, teacher, temperature), what=f"the loss at temperature {temperature:g}", rtol=1e-4)


@LOSS.check("takes any axes before the last")
def takes_batches(answer: Any, draw: Draw) -> None:
    """Logits may be [B, T, V]: the sum is over the last axis, the mean over B times T positions."""
    # The mean is over all positions, of however many axes.
    student, teacher = pair(draw, 2, 3, 5)
    got = float(loss_of(answer, student, teacher, 2.0))
    compare(got, oracle(student, teacher, 2.0), what="the loss of logits [2, 3, 5]", rtol=1e-4)


@LOSS.check("survives large logits", size=(10.0, 100.0))
def survives_large_logits(answer: Any, draw: Draw, size: float) -> None:
    """A probability that underflows to 0 has no logarithm: `log_softmax` in place of `softmax().log()`."""
    student, teacher = pair(draw, 3, 6)
    student, teacher = (size * logits.round() for logits in (student, teacher))
    student[0, 0], teacher[0, 1] = 2 * size * 10, 2 * size * 10  # one token far ahead, another one for each
    got = loss_of(answer, student, teacher, 1.0)
    finite(got, f"the loss of logits up to {20 * size:g}")
    compare(float(got), oracle(student, teacher, 1.0), what=f"the loss of logits up to {20 * size:g}", rtol=1e-4)


def gradient(answer: Any, student: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor | None, Tensor | None]:
    own, other = student.clone().requires_grad_(True), teacher.clone().requires_grad_(True)
    loss = answer.distillation_loss(own, other, temperature)
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        reject("no gradient reaches the student's logits", "`.item()`, `.detach()` and `no_grad` end the way back.")
    loss.backward()
    return own.grad, other.grad


@LOSS.check("trains the student", temperature=(1.0, 3.0))
def trains_the_student(answer: Any, draw: Draw, temperature: float) -> None:
    """The gradient of a student's logit is T (q - p), divided by the number of positions."""
    # T (q - p) / positions, with both at temperature T: of the same size whatever T is, as T grows.
    student, teacher = pair(draw, 4, 7)
    own, _ = gradient(answer, student, teacher, temperature)
    q, p = (torch.softmax(logits.double() / temperature, -1) for logits in (student, teacher))
    expected = (temperature * (q - p) / len(student)).float()
    axes = ("position", "token")
    compare(own, expected, what="the gradient of the student's logits", axes=axes, rtol=1e-3, atol=1e-6)


@LOSS.check("leaves the teacher alone")
def leaves_the_teacher(answer: Any, draw: Draw) -> None:
    """`teacher_logits.detach()`: no gradient flows into the teacher."""
    _, other = gradient(answer, *pair(draw, 4, 7), 2.0)
    if other is not None and bool((other != 0).any()):
        reject("a gradient reaches the teacher's logits", "the teacher is not trained: cut its side off")


FAKE = exercise(
    "6.15", "Rounding that can be trained through", "fake_quantize", points=2, minutes=7, lines=3, difficulty=2
)
FAKE.is_extra = True
FAKE.objective = "compute with rounded weights, and train the ones behind them"
FAKE.hints = (
    "`round` is flat almost everywhere: its gradient is 0, and nothing would be learned. What should the gradient "
    "be as if rounding were not there?",
    "`weight + (rounded - weight).detach()` has the value of `rounded` and the gradient of `weight`.",
    "A group that is all alike has a step of 0: divide by 1 there instead, and every code is 0.",
)


def rounding_oracle(weight: Tensor, bits: int, group_size: int) -> Tensor:
    """Element by element, in float64: the nearest of 2^bits values from the group's smallest to its largest."""
    last, out = 2**bits - 1, weight.double().clone()
    for o in range(weight.shape[0]):
        for start in range(0, weight.shape[1], group_size):
            group = weight[o, start : start + group_size].double()
            low, step = float(group.min()), float(group.max() - group.min()) / last
            if step:
                out[o, start : start + group_size] = torch.tensor(
                    [low + step * round((float(w) - low) / step) for w in group]
                )
    return out.float()


def clear_of_halves(draw: Draw, num_outputs: int, num_groups: int, bits: int, group_size: int) -> Tensor:
    """Weights no nearer than a tenth of a step to the middle between two values, each group with a grid of its own."""
    last = 2**bits - 1
    codes = draw.integers(0, last + 1, num_outputs, num_groups, group_size).float()
    codes[..., 0], codes[..., 1] = 0, last
    off = draw.uniform(num_outputs, num_groups, group_size, low=-0.4, high=0.4)
    off[..., :2] = 0
    off = torch.where(codes == 0, off.abs(), torch.where(codes == last, -off.abs(), off))
    steps = draw.uniform(num_outputs, num_groups, 1, low=0.5, high=2)
    lows = draw.normal(num_outputs, num_groups, 1)
    return (lows + steps * (codes + off)).flatten(1)


def faked(answer: Any, weight: Tensor, bits: int, group_size: int) -> Tensor:
    with unchanged(weight=weight):
        got = answer.fake_quantize(weight, bits, group_size)
    if not isinstance(got, torch.Tensor) or got.shape != weight.shape:
        shape = list(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
        reject(f"fake_quantize returned {shape} for a weight {list(weight.shape)}, expected a tensor of this shape")
    return got


@FAKE.check(
    "rounds to the nearest in each group",
    {"num_outputs": 1, "num_groups": 1, "bits": 2, "group_size": 8},
    {"num_outputs": 3, "num_groups": 4, "bits": 3, "group_size": 16},
    {"num_outputs": 2, "num_groups": 3, "bits": 4, "group_size": 64},
    {"num_outputs": 2, "num_groups": 2, "bits": 4, "group_size": 16, "size": 1e-6},
)
def rounds_each_group(
    answer: Any, draw: Draw, num_outputs: int, num_groups: int, bits: int, group_size: int, size: float = 1.0
) -> None:
    """Codes are 0 to 2^bits - 1: that many steps lie between a group's smallest and its largest weight, and a small
    step is not made larger."""
    weight = size * clear_of_halves(draw, num_outputs, num_groups, bits, group_size)
    got = faked(answer, weight, bits, group_size)
    what = f"the weight in {bits} bits, in groups of {group_size},"
    expected = rounding_oracle(weight, bits, group_size)
    compare(got, expected, what=what, axes=("output", "input"), rtol=1e-4, atol=1e-4 * size)


@FAKE.check("keeps a group that is all alike")
def keeps_constant_groups(answer: Any, draw: Draw) -> None:
    """0 / 0 is NaN. Where the step is 0, any divisor will do."""
    weight = clear_of_halves(draw, 2, 2, 3, 8)
    weight[1, 8:] = 0.75
    weight[0, :8] = 0.0
    got = faked(answer, weight, 3, 8)
    finite(got, "the weight, with a group that is all alike,", ("output", "input"))
    compare(got, rounding_oracle(weight, 3, 8), what="the weight", axes=("output", "input"), rtol=1e-4, atol=1e-4)


@FAKE.check("lets gradients through as if nothing were rounded", num_outputs=(1, 3), num_groups=(1, 4))
def lets_gradients_through(answer: Any, draw: Draw, num_outputs: int, num_groups: int) -> None:
    """Value and gradient part ways: `weight + (rounded - weight).detach()`."""
    # Straight through: the gradient of the rounded weight is the weight's, also at the group's ends.
    weight = clear_of_halves(draw, num_outputs, num_groups, 2, 8).requires_grad_(True)
    upstream = draw.normal(*weight.shape)
    got = answer.fake_quantize(weight, 2, 8)
    if not isinstance(got, torch.Tensor) or not got.requires_grad:
        reject("no gradient reaches the weight", "the whole result is detached: `weight` itself must be part of it")
    got.backward(upstream)
    axes = ("output", "input")
    compare(weight.grad, upstream, what="the weight's gradient (that of the rounded weight)", axes=axes)
