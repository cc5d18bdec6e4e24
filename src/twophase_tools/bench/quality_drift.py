"""How far a model's predictions drift over a text when its cache or its weights have fewer bits.

Means over a text are estimates: their 95 % margins come from the means of 64-token stretches, as neighbours are not
independent (batch means; Law, Simulation Modeling, 9.5.3).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.llm import LLM
from twophase.model.weights import ModelWeights
from twophase_tools.bench.perplexity import step_logits

STRETCH = 64  # tokens whose mean counts as one independent observation
Z95 = 1.96  # normal distribution, two-sided 95 %


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and half the width of its 95 % confidence interval."""

    mean: float
    margin: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How next-token distributions differ over a text, before and after.

    Attributes:
        log_ratio: Of the perplexities, after over before.
        kl: KL(before || after), nats.
        top1: Share of positions with the same most likely token.
    """

    log_ratio: Estimate
    kl: Estimate
    top1: Estimate


def measure_drift(before: LLM, after: LLM, token_ids: Sequence[int]) -> Drift:
    """Read the text with both, step by step, and compare the distributions at each position."""
    return drift_between(step_logits(before, token_ids), step_logits(after, token_ids), token_ids)


def drift_between(
    before: Iterable[Float[Tensor, "L V"]], after: Iterable[Float[Tensor, "L V"]], token_ids: Sequence[int]
) -> Drift:
    """The drift between the logits of a text, which come in the same steps; row i of the whole predicts token i + 1."""
    targets = torch.tensor(token_ids[1:])
    parts: list[Tensor] = []
    start = 0
    for old_logits, new_logits in zip(before, after, strict=True):
        wanted = targets[start : start + old_logits.shape[0]].to(old_logits.device)
        start += old_logits.shape[0]
        parts.append(_compare(old_logits[: len(wanted)], new_logits[: len(wanted)], wanted))
    rises, kl, is_same = torch.cat(parts).unbind(1)
    return Drift(estimate(rises), estimate(kl), estimate(is_same))


def _compare(old: Float[Tensor, "n V"], new: Float[Tensor, "n V"], targets: Tensor) -> Float[Tensor, "n 3"]:
    """Per position: rise of the loss in nats, KL(old || new) in nats, and 1 where both prefer the same token."""
    old, new = old.log_softmax(-1), new.log_softmax(-1)
    rise = (old - new).gather(1, targets[:, None]).squeeze(1)
    kl = (old.exp() * (old - new)).sum(-1)
    is_same = (old.argmax(-1) == new.argmax(-1)).to(kl.dtype)
    return torch.stack([rise, kl, is_same], dim=1).double().cpu()


def estimate(values: Float[Tensor, "n"]) -> Estimate:
    """The mean of a text's positions, with its margin by batch means; positions beyond the last stretch count too."""
    stretches = values[: len(values) // STRETCH * STRETCH].view(-1, STRETCH).mean(1)
    margin = Z95 * float(stretches.std()) / math.sqrt(len(stretches))
    # NaN anywhere is as bad as it gets, and must not look like a number that compares false.
    mean = float(values.mean())
    return Estimate(mean, margin) if math.isfinite(mean + margin) else Estimate(math.inf, 0.0)


@contextmanager
def replaced_weights(llm: LLM, weights: ModelWeights) -> Iterator[None]:
    """The model computes with these; with its own again at the end."""
    own = llm.model.weights
    llm.model.weights = weights
    try:
        yield
    finally:
        llm.model.weights = own
