"""A quality gate for K and V in fewer bits: its measures, and what it may say after so many tokens."""

import math
from typing import Any

import numpy as np
import torch

from twophase_labs.machine.checks import Draw, amount, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import exercise

MEASURES = exercise(
    "5.14", "Perplexity and divergence", "surprises perplexity divergences", points=3, minutes=10, lines=4, difficulty=2
)
MEASURES.time_limit_s = 10
MEASURES.objective = "measure what a change of the cache does to a model's predictions"
MEASURES.hints = (
    "Everything comes from log_softmax of the logits: it is log p, safe for large logits.",
    "Surprise is -log p of the token that did come. Perplexity is exp of the mean surprise.",
    "KL(p || q) = sum over tokens of p * (log p - log q), with p from before and q from after.",
)


def probabilities(logits: torch.Tensor) -> np.ndarray:
    """Softmax of each row in float64, with plain arithmetic."""
    rows = logits.double().numpy()
    weights = np.exp(rows - rows.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def right_surprises(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    rows = probabilities(logits)
    return torch.tensor([-math.log(rows[i, target]) for i, target in enumerate(targets.tolist())]).float()


def right_divergences(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    totals = []
    for p_row, q_row in zip(probabilities(before), probabilities(after), strict=True):
        totals.append(sum(p * math.log(p / q) for p, q in zip(p_row, q_row, strict=True) if p > 0))
    return torch.tensor(totals).float()


def drawn(draw: Draw, length: int, vocabulary: int = 17) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * draw.normal(length, vocabulary), draw.integers(0, vocabulary, length)


@MEASURES.check("gives the surprise at each target", {"length": 1}, {"length": 7}, {"length": 150, "vocabulary": 300})
def gives_surprises(answer: Any, draw: Draw, length: int, vocabulary: int = 17) -> None:
    """Position i's surprise is minus the log-probability, in nats, that row i gives to targets[i]."""
    logits, targets = drawn(draw, length, vocabulary)
    expected = right_surprises(logits, targets)
    with unchanged(logits=logits, targets=targets):
        got = answer.surprises(logits, targets)
    compare(got, expected, what="the surprise", axes=("position",))


@MEASURES.check("averages before it exponentiates", length=(1, 9))
def gives_perplexity(answer: Any, draw: Draw, length: int) -> None:
    """Perplexity is exp(mean of surprises): the geometric mean of 1/p, as a plain number (`.item()`)."""
    logits, targets = drawn(draw, length)
    expected = float(right_surprises(logits, targets).double().mean().exp())
    compare(answer.perplexity(logits, targets), expected, what="the perplexity", rtol=1e-4)


@MEASURES.check("counts equal choices", vocabulary=(2, 50, 20_000))
def counts_choices(answer: Any, draw: Draw, vocabulary: int) -> None:
    """A model that gives all tokens the same chance has a perplexity of the vocabulary's size."""
    logits, targets = torch.full((6, vocabulary), draw.random.uniform(-3, 3)), draw.integers(0, vocabulary, 6)
    answer.perplexity(draw.normal(6, vocabulary), targets)  # of the same shape; nothing of it must be left
    got = answer.perplexity(logits, targets)
    compare(got, float(vocabulary), what=f"the perplexity of a model that knows nothing of {vocabulary} tokens",
            rtol=1e-4)  # fmt: skip


@MEASURES.check("finds no difference where there is none")
def no_difference(answer: Any, draw: Draw) -> None:
    """Compare probabilities, not logits: a softmax does not see a number that is added to all of them."""
    logits, _ = drawn(draw, 6)
    compare(answer.divergences(logits, logits.clone()), torch.zeros(6), what="the divergence of equal logits",
            axes=("position",))  # fmt: skip
    # Adding a number to all logits of a row changes no probability.
    compare(answer.divergences(logits, logits + 5), torch.zeros(6), what="the divergence of logits shifted by 5",
            axes=("position",))  # fmt: skip


@MEASURES.check("gives the divergence at each position", length=(1, 7))
def gives_divergences(answer: Any, draw: Draw, length: int) -> None:
    """KL(before || after): log p - log q, weighted with the probabilities from *before*, summed over the
    vocabulary, in nats."""
    before, _ = drawn(draw, length)
    after = before + draw.normal(length, 17)
    expected = right_divergences(before, after)
    with unchanged(before=before, after=after):
        got = answer.divergences(before, after)
    compare(got, expected, what="the divergence", axes=("position",))


@MEASURES.check("survives impossible tokens")
def survives_impossible(answer: Any, draw: Draw) -> None:
    """Where p is 0 the term is 0 by definition; computed, it is 0 * (-inf + inf) = NaN."""
    # As under a mask: tokens with probability 0 on both sides.
    before, _ = drawn(draw, 6)
    after = before + draw.normal(6, 17)
    hidden = draw.uniform(6, 17) < 0.4
    hidden[:, 0] = False
    before, after = before.masked_fill(hidden, -math.inf), after.masked_fill(hidden, -math.inf)
    got = answer.divergences(before, after)
    if not isinstance(got, torch.Tensor):
        reject(f"divergences should give a tensor; got {got!r}")
    finite(got, what="the divergence", axes=("position",))
    compare(got, right_divergences(before, after), what="the divergence", axes=("position",))


@MEASURES.check("tells what became impossible")
def tells_the_impossible(answer: Any, draw: Draw) -> None:
    """Only what is impossible on both sides, or before, counts 0. If the new model rules out what the old one says,
    the divergence is infinite, and has to show."""
    # Impossible only afterwards: infinitely far. Impossible only before: nothing is added.
    before, after = draw.normal(2, 17), draw.normal(2, 17)
    after[0, 5] = before[1, 5] = -math.inf
    got = answer.divergences(before, after)
    if not float(got[0]) > 1e30:  # some libraries give the largest float in place of infinity
        reject(f"the divergence where a token became impossible is {float(got[0]):.6g}, expected infinity")
    compare(got[1:], right_divergences(before[1:], after[1:]), what="the divergence where a token became possible")


@MEASURES.check("measures any surprise")
def measures_any_surprise(answer: Any, draw: Draw) -> None:
    """Perplexity has no upper end, and an impossible token is an infinite surprise."""
    # A model that is sure of the wrong token: a perplexity of e^30, and an infinite one.
    logits, targets = torch.zeros(4, 9), torch.tensor([1, 2, 3, 4])
    logits[:, 0] = 30
    expected = float(right_surprises(logits, targets).double().mean().exp())
    compare(answer.perplexity(logits, targets), expected, what="the perplexity of a model that is wrong", rtol=1e-3)
    logits[2, 3] = -math.inf
    got = answer.surprises(logits, targets)
    compare(got[2:3], torch.tensor([math.inf]), what="the surprise at an impossible token", axes=("position",))


@MEASURES.check("survives large logits")
def survives_large(answer: Any, draw: Draw) -> None:
    """exp(1,000) is infinite in float32; log_softmax never computes it."""
    logits, targets = drawn(draw, 5)
    logits = 60 * logits
    other = logits + 3 * draw.normal(5, 17)
    for name, got in (
        ("the surprise", answer.surprises(logits, targets)),
        ("the divergence", answer.divergences(logits, other)),
    ):
        finite(got, what=name, axes=("position",))


GATE = exercise("5.15", "Enough text to decide", "decide", points=2, minutes=7, lines=4, difficulty=2, is_extra=True)
GATE.time_limit_s = 10
GATE.objective = "tell 'not kept' from 'not known yet'"
GATE.hints = (
    "The interval is the mean plus and minus z standard errors.",
    "The standard error is `values.std()` over the square root of how many there are; torch's std divides by n - 1, "
    "as it should.",
    "The upper end decides whether it passes, the lower end whether it fails. With fewer than two values there is "
    "no spread, so: read on.",
)

SAYS = ("pass", "FAIL", "read on")


def right_verdict(values: list[float], limit: float, z: float) -> str:
    """The oracle, in float64 and with plain loops."""
    if len(values) < 2:
        return "read on"
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    margin = z * math.sqrt(variance / len(values))
    return "pass" if mean + margin <= limit else "FAIL" if mean - margin > limit else "read on"


def expect_verdict(answer: Any, values: torch.Tensor, limit: float, z: float, why: str = "") -> None:
    with unchanged(values=values):
        got = answer.decide(values, limit, z)
    expected = right_verdict(values.double().tolist(), limit, z)
    if got not in SAYS or got != expected:
        told = (
            f"mean {float(values.mean()):.4g} of {amount(len(values), 'value')}, limit {limit:.4g}, z={z:g}"
            if len(values)
            else "no values"
        )
        reject(f"{told}: the verdict is {got!r}, expected {expected!r}" + why, f"values {values.tolist()!s:.300}")


def drawn_values(draw: Draw, num: int, scale: float = 1.0) -> torch.Tensor:
    return (draw.normal(num) * scale + 3 * scale).double()


@GATE.check("decides where it is clear")
def decides_clear_cases(answer: Any, draw: Draw) -> None:
    """Small values are good: an interval all below the limit passes, one all above it fails."""
    for num in (2, 5, 20):
        scale = draw.random.choice((0.01, 1.0, 50.0))
        values = drawn_values(draw, num, scale)
        spread = float(values.std()) + scale
        mean = float(values.mean())
        for limit in (mean + 40 * spread, mean - 40 * spread):
            expect_verdict(answer, values, limit, 1.96)


@GATE.check("reads on while the interval contains the limit")
def reads_on_within(answer: Any, draw: Draw) -> None:
    """A limit between the two ends is neither proved nor refuted."""
    for num in (3, 8, 30):
        values = drawn_values(draw, num)
        margin = 1.96 * float(values.std()) / math.sqrt(num)
        for part in (-0.6, 0.0, 0.6):
            expect_verdict(answer, values, float(values.mean()) + part * margin, 1.96)


@GATE.check("makes the interval as wide as z says", z=(1.96, 2.5, 1.0))
def has_the_right_width(answer: Any, draw: Draw, z: float) -> None:
    """Half its width is z * std / sqrt(n), with n - 1 in the standard deviation."""
    # The limit a little inside and a little outside either end of the interval.
    for num in (2, 4, 12, 40, draw.integer(80, 120)):
        values = drawn_values(draw, num)
        margin = z * float(values.std()) / math.sqrt(num)
        for part in (-1.03, -0.97, 0.97, 1.03):
            expect_verdict(answer, values, float(values.mean()) + part * margin, z)


@GATE.check("does not decide from fewer than two")
def needs_two(answer: Any, draw: Draw) -> None:
    """One value has no spread: read on."""
    for num in (0, 1):
        values = drawn_values(draw, num)
        for limit in (-100.0, 100.0):
            expect_verdict(answer, values, limit, 1.96, "; of fewer than two values the spread is not known")


@GATE.check("lets the mean decide where all are equal")
def knows_equal_values(answer: Any, draw: Draw) -> None:
    """The margin is 0 then; at most the limit is within the limit."""
    # No spread at all: the mean decides, and a limit that is just kept is kept.
    for num in (2, 7):
        for value, limit in ((0.25, 0.5), (0.5, 0.25), (0.5, 0.5), (0.0, 0.0)):
            expect_verdict(answer, torch.full((num,), value, dtype=torch.float64), limit, 1.96)
