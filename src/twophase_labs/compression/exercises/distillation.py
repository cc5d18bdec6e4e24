"""6.9: a student's loss."""

import math
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import exercise

LOSS = exercise("6.9", "What the teacher thinks", "distillation_loss", points=3, minutes=12, lines=4, difficulty=2)
LOSS.is_extra = True
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
