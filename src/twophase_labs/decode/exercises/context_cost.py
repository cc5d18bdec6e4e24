"""Step time against context: a straight line fitted to measurements, and what its two numbers are made of."""

from typing import Any

import numpy as np

from twophase_labs.machine.checks import Draw, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Matching


def fitted(answer: Any, x: list[float], y: list[float]) -> tuple[float, float]:
    got = answer.fit_line(list(x), list(y))  # copies: what it may do to its inputs is looked at on its own
    if not isinstance(got, tuple | list) or len(got) != 2:
        reject("fit_line returns two numbers, a and b")
    return float(got[0]), float(got[1])


def require(got: tuple[float, float], expected: tuple[float, float], what: str) -> None:
    for name, one, other in zip(("a", "b"), got, expected, strict=True):
        if not abs(one - other) <= 1e-6 + 1e-6 * abs(other):
            reject(f"{what}: {name} is {one:.6g}, expected {other:.6g}", f"got a = {got[0]:.6g}, b = {got[1]:.6g}")


def contexts(draw: Draw, num: int) -> list[float]:
    """Not evenly spaced, and in any order."""
    return [float(t) for t in draw.random.sample(range(1, 5000), num)]


def finds_an_exact_line(answer: Any, draw: Draw, num: int) -> None:
    a, b = draw.random.uniform(5, 50), draw.random.uniform(0.5, 3)
    x = contexts(draw, num)
    require(fitted(answer, x, [a + b * t for t in x]), (a, b), f"points on the line {a:.3f} + {b:.3f} t")


def finds_a_flat_line(answer: Any, draw: Draw) -> None:
    x = contexts(draw, 4)
    require(fitted(answer, x, [3.0] * 4), (3.0, 0.0), "four times of 3 s")


def keeps_digits(answer: Any, draw: Draw) -> None:
    """Large contexts close to each other: sums of squares would lose what makes them differ."""
    x = [1e7 + n for n in (0.1, 3.3, 4.7, 9.2, 11.9)]
    a, b = draw.integer(1, 9), draw.integer(2, 5)
    got = fitted(answer, x, [float(a + b * (t - 1e7)) for t in x])
    require(got, (a - b * 1e7, float(b)), "points at contexts around ten million")


def minimises_squares(answer: Any, draw: Draw, num: int) -> None:
    for _ in range(2):
        x = contexts(draw, num)
        y = [10 + 0.5 * t + draw.random.gauss(0, 300) for t in x]
        b, a = np.polyfit(x, y, 1)
        require(fitted(answer, x, y), (float(a), float(b)), f"{num} points beside a line")


def order_does_not_matter(answer: Any, draw: Draw) -> None:
    x = contexts(draw, 6)
    y = [draw.random.uniform(0, 100) for _ in x]
    require(fitted(answer, x[::-1], y[::-1]), fitted(answer, x, y), "the same points in reverse order")


def leaves_inputs_alone(answer: Any, draw: Draw) -> None:
    low, middle, high = sorted(contexts(draw, 3))
    x = [middle, high, low]  # in neither order, so that sorting shows
    y = [2 * t for t in x]
    with unchanged(x=x, y=y):
        answer.fit_line(x, y)


EXERCISES = (
    Exercise(
        id="3.21",
        title="Fit the step time",
        kind="code",
        names=("fit_line",),
        points=3,
        minutes=8,
        lines=4,
        objective="fit a straight line to measurements",
        hints=(
            "Least squares has a closed form: subtract the means first, and the constant drops out.",
            "b is the sum of the products of both deviations over the sum of the squared deviations of t.",
            "The line goes through the point of the two means; that gives a.",
        ),
        checks=(
            Property(
                "finds a line that is there",
                finds_an_exact_line,
                "Return a, the value at t = 0, first; then b, the slope. The line need not go through the origin, "
                "and the points are not evenly spaced.",
                ({"num": 2}, {"num": 6}),
            ),
            Property("finds that nothing grows", finds_a_flat_line, "No slope, and the constant itself."),
            Property(
                "has the least squares",
                minimises_squares,
                "Every point counts, with both its deviations: sums over all points, of (t - mean) times (y - mean).",
                ({"num": 3}, {"num": 8}, {"num": 200}),
            ),
            Property(
                "keeps its digits",
                keeps_digits,
                "Take the means away before anything is multiplied: differences of huge sums lose all digits.",
            ),
            Property("takes points in any order", order_does_not_matter, "The first point is nothing special."),
            Property("leaves its inputs alone", leaves_inputs_alone, "Make arrays of the lists first."),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="3.22",
        title="What moves a, what moves b",
        kind="matching",
        names=("answer_3_22",),
        points=2,
        minutes=4,
        objective="know what the constant and the slope are made of",
        question=Matching(
            "abcd",
            {
                "weights in int8": "298d660c38d270b1",
                "K and V in int8": "ea57cd5d6265fb23",
                "half as many layers": "7aef0f61f8dfc1ff",
                "twice the memory bandwidth": "21caf76c8fc418a3",
                "fewer kernel launches (a CUDA graph)": "f79b684eb341ce67",
                "a block size of 32 instead of 16": "dc2f00f76c9c039c",
            },
            hint="Ask of each: does a step at context 0 notice? And does a token of context cost something else now?",
        ),
    ),
)
