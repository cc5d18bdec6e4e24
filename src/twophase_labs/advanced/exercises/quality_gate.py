"""and 5.17: a quality gate for K and V in fewer bits."""

import math
from typing import Any

import numpy as np
import torch

from twophase_labs.machine.checks import Draw, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property


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


def gives_surprises(answer: Any, draw: Draw, length: int, vocabulary: int = 17) -> None:
    logits, targets = drawn(draw, length, vocabulary)
    expected = right_surprises(logits, targets)
    with unchanged(logits=logits, targets=targets):
        got = answer.surprises(logits, targets)
    compare(got, expected, what="the surprise", axes=("position",))


def survives_large(answer: Any, draw: Draw) -> None:
    logits, targets = drawn(draw, 5)
    logits = 60 * logits
    other = logits + 3 * draw.normal(5, 17)
    for name, got in (
        ("the surprise", answer.surprises(logits, targets)),
        ("the divergence", answer.divergences(logits, other)),
    ):
        finite(got, what=name, axes=("position",))


def gives_perplexity(answer: Any, draw: Draw, length: int) -> None:
    logits, targets = drawn(draw, length)
    expected = float(right_surprises(logits, targets).double().mean().exp())
    compare(answer.perplexity(logits, targets), expected, what="the perplexity", rtol=1e-4)


def measures_any_surprise(answer: Any, draw: Draw) -> None:
    """A model that is sure of the wrong token: a perplexity of e^30, and an infinite one."""
    logits, targets = torch.zeros(4, 9), torch.tensor([1, 2, 3, 4])
    logits[:, 0] = 30
    expected = float(right_surprises(logits, targets).double().mean().exp())
    compare(answer.perplexity(logits, targets), expected, what="the perplexity of a model that is wrong", rtol=1e-3)
    logits[2, 3] = -math.inf
    got = answer.surprises(logits, targets)
    compare(got[2:3], torch.tensor([math.inf]), what="the surprise at an impossible token", axes=("position",))


def counts_choices(answer: Any, draw: Draw, vocabulary: int) -> None:
    logits, targets = torch.full((6, vocabulary), draw.random.uniform(-3, 3)), draw.integers(0, vocabulary, 6)
    answer.perplexity(draw.normal(6, vocabulary), targets)  # of the same shape; nothing of it must be left
    got = answer.perplexity(logits, targets)
    compare(got, float(vocabulary), what=f"the perplexity of a model that knows nothing of {vocabulary} tokens",
            rtol=1e-4)  # fmt: skip


def no_difference(answer: Any, draw: Draw) -> None:
    logits, _ = drawn(draw, 6)
    compare(answer.divergences(logits, logits.clone()), torch.zeros(6), what="the divergence of equal logits",
            axes=("position",))  # fmt: skip
    # Adding a number to all logits of a row changes no probability.
    compare(answer.divergences(logits, logits + 5), torch.zeros(6), what="the divergence of logits shifted by 5",
            axes=("position",))  # fmt: skip


def gives_divergences(answer: Any, draw: Draw, length: int) -> None:
    before, _ = drawn(draw, length)
    after = before + draw.normal(length, 17)
    expected = right_divergences(before, after)
    with unchanged(before=before, after=after):
        got = answer.divergences(before, after)
    compare(got, expected, what="the divergence", axes=("position",))


def tells_the_impossible(answer: Any, draw: Draw) -> None:
    """Impossible only afterwards: infinitely far. Impossible only before: nothing is added."""
    before, after = draw.normal(2, 17), draw.normal(2, 17)
    after[0, 5] = before[1, 5] = -math.inf
    got = answer.divergences(before, after)
    if not float(got[0]) > 1e30:  # some libraries give the largest float in place of infinity
        reject(f"the divergence where a token became impossible is {float(got[0]):.6g}, expected infinity")
    compare(got[1:], right_divergences(before[1:], after[1:]), what="the divergence where a token became possible")


def survives_impossible(answer: Any, draw: Draw) -> None:
    """As under a mask: tokens with probability 0 on both sides."""
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


EXERCISES = (
    Exercise(
        id="5.15",
        was="5.16",
        title="Perplexity and divergence",
        kind="code",
        names=("surprises", "perplexity", "divergences"),
        points=3,
        minutes=10,
        lines=4,
        difficulty=2,
        objective="measure what a change of the cache does to a model's predictions",
        hints=(
            "Everything comes from log_softmax of the logits: it is log p, safe for large logits.",
            "Surprise is -log p of the token that did come. Perplexity is exp of the mean surprise.",
            "KL(p || q) = sum over tokens of p * (log p - log q), with p from before and q from after.",
        ),
        checks=(
            Property(
                "gives the surprise at each target",
                gives_surprises,
                "Position i's surprise is minus the log-probability, in nats, that row i gives to targets[i].",
                ({"length": 1}, {"length": 7}, {"length": 150, "vocabulary": 300}),
            ),
            Property(
                "averages before it exponentiates",
                gives_perplexity,
                "Perplexity is exp(mean of surprises): the geometric mean of 1/p, as a plain number (`.item()`).",
                ({"length": 1}, {"length": 9}),
            ),
            Property(
                "counts equal choices",
                counts_choices,
                "A model that gives all tokens the same chance has a perplexity of the vocabulary's size.",
                ({"vocabulary": 2}, {"vocabulary": 50}, {"vocabulary": 20_000}),
            ),
            Property(
                "finds no difference where there is none",
                no_difference,
                "Compare probabilities, not logits: a softmax does not see a number that is added to all of them.",
            ),
            Property(
                "gives the divergence at each position",
                gives_divergences,
                "KL(before || after): log p - log q, weighted with the probabilities from *before*, summed over the "
                "vocabulary, in nats.",
                ({"length": 1}, {"length": 7}),
            ),
            Property(
                "survives impossible tokens",
                survives_impossible,
                "Where p is 0 the term is 0 by definition; computed, it is 0 * (-inf + inf) = NaN.",
            ),
            Property(
                "tells what became impossible",
                tells_the_impossible,
                "Only what is impossible on both sides, or before, counts 0. If the new model rules out what the old "
                "one says, the divergence is infinite, and has to show.",
            ),
            Property(
                "measures any surprise",
                measures_any_surprise,
                "Perplexity has no upper end, and an impossible token is an infinite surprise.",
            ),
            Property(
                "survives large logits",
                survives_large,
                "exp(1,000) is infinite in float32; log_softmax never computes it.",
            ),
        ),
        time_limit_s=10,
    ),
)
