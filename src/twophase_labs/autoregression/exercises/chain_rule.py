"""A text's probability is a product: the chain rule, on a model's logits."""

import math
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import exercise

SUM = "The chain rule adds one term per predicted token: a sum, neither a mean nor a vector."
NEXT = "Row t of the logits was computed from tokens 0 to t. Which token does it predict? And the last row?"

LOG_PROB = exercise("1.1", "The log-probability of a text", "text_log_prob", points=4, minutes=6, lines=4)
LOG_PROB.objective = "write a text's probability as a sum of log-probabilities"
LOG_PROB.hints = (
    "T tokens make T rows of logits, but only T - 1 of the tokens are predicted. Which token is not?",
    "Row t has seen tokens 0 to t and predicts token t + 1: rows without the last, tokens without the first.",
    "`log_softmax(-1)`, cut both, then `gather(-1, tokens[:, None])` picks one entry per row; add them up.",
)


def naive_log_prob(logits: Tensor, ids: Tensor) -> float:
    """One token at a time, in Python's own floats."""
    total = 0.0
    for row, token in zip(logits.double().tolist()[:-1], ids.tolist()[1:], strict=True):
        top = max(row)
        total += row[token] - top - math.log(sum(math.exp(value - top) for value in row))
    return total


def text(draw: Draw, length: int, vocab: int = 11, scale: int = 2) -> tuple[Tensor, Tensor]:
    return scale * draw.normal(length, vocab), draw.integers(0, vocab, length)


def number(got: object) -> float:
    if isinstance(got, Tensor) and got.numel() != 1:
        reject(f"the result is a tensor of shape {list(got.shape)}, expected one number")
    if not isinstance(got, Tensor | int | float):
        reject(f"the result is a {type(got).__name__}, expected one number")
    return float(got)


@LOG_PROB.check("gives one number", length=(2, 5), hint=SUM)
def gives_one_number(answer: Any, draw: Draw, length: int) -> None:
    number(answer.text_log_prob(*text(draw, length)))


@LOG_PROB.check("turns each row into log-probabilities", length=(2, 6))
def ignores_a_rows_level(answer: Any, draw: Draw, length: int) -> None:
    """Logits are no log-probabilities yet. Each row must be normalised over the vocabulary, its last axis."""
    logits, ids = text(draw, length)
    before = number(answer.text_log_prob(logits, ids))
    raised = logits.clone()
    raised[0] += 3
    after = number(answer.text_log_prob(raised, ids))
    compare(after, before, what="the log-probability, with 3 added to every logit of row 0,", rtol=1e-4, atol=1e-3)


@LOG_PROB.check("leaves out the last row", length=(2, 5), hint=NEXT)
def leaves_out_the_last_row(answer: Any, draw: Draw, length: int) -> None:
    logits, ids = text(draw, length)
    before = number(answer.text_log_prob(logits, ids))
    other = torch.cat([logits[:-1], draw.normal(1, logits.shape[1])])
    after = number(answer.text_log_prob(other, ids))
    compare(after, before, what="the log-probability, with other logits in the last row,", rtol=1e-4, atol=1e-3)


@LOG_PROB.check("adds up over the text", length=(3, 30), hint=SUM)
def adds_up(answer: Any, draw: Draw, length: int) -> None:
    # Wherever the text is cut, the parts have the probability of the whole.
    logits, ids = text(draw, length)
    whole = number(answer.text_log_prob(logits, ids))
    for cut in range(1, length - 1):
        first = number(answer.text_log_prob(logits[: cut + 1], ids[: cut + 1]))
        rest = number(answer.text_log_prob(logits[cut:], ids[cut:]))
        compare(whole, first + rest, what=f"log p of all {length} tokens", rtol=1e-4, atol=1e-3)


@LOG_PROB.check(
    "matches a loop over the tokens",
    {"length": 1},
    {"length": 2},
    {"length": 7},
    {"length": 150, "vocab": 300},
    hint=NEXT,
)
def matches_a_loop(answer: Any, draw: Draw, length: int, vocab: int = 11) -> None:
    logits, ids = text(draw, length, vocab)
    expected = naive_log_prob(logits, ids)
    compare(number(answer.text_log_prob(logits, ids)), expected, what="the log-probability", rtol=1e-4, atol=1e-3)


@LOG_PROB.check("survives confident logits", forbidden=(0, 4))
def survives_confidence(answer: Any, draw: Draw, forbidden: int) -> None:
    """A probability of e^-200 is 0 in float32, and its logarithm minus infinity: take `log_softmax` in one step,
    not the log of a softmax. And 0 times minus infinity is NaN: pick terms, do not multiply."""
    # `forbidden` tokens of each row have the logit -inf, as an earlier processor leaves it; the text has none.
    logits, ids = text(draw, 6, scale=500)
    for row, token in enumerate(ids[1:].tolist()):
        logits[row, [(token + 1 + i) % logits.shape[1] for i in range(forbidden)]] = -torch.inf
    expected = naive_log_prob(logits, ids)
    got = number(answer.text_log_prob(logits, ids))
    if not math.isfinite(got):
        reject(f"with logits in the hundreds the result is {got}, expected {expected:.6g}")
    compare(got, expected, what="the log-probability", rtol=1e-4, atol=1e-3)


@LOG_PROB.check("leaves its inputs alone")
def leaves_inputs_alone(answer: Any, draw: Draw) -> None:
    """Operations ending in _ write in place."""
    logits, ids = text(draw, 4)
    with unchanged(logits=logits, ids=ids):
        answer.text_log_prob(logits, ids)
