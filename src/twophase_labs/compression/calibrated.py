"""Sections 5 and 6: weights rounded to few bits with a look at their inputs, and what the output loses by it."""

from collections.abc import Callable, Mapping
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from twophase_labs.compression.changed_model import KINDS, PLACES, Place, matrix, recorded_inputs, weight_of

NUM_CALIBRATION = 128  # tokens that AWQ looks at


def relative_error(rounded: Float[Tensor, "O I"], name: str, x: Float[Tensor, "T I"]) -> float:
    """Of the output on these inputs: the norm of the difference over the norm of the output."""
    weight: Tensor = weight_of(name)
    wanted = x @ weight.T
    return float((x @ rounded.T - wanted).norm() / wanted.norm())


def all_factors(awq: Callable[..., Tensor], bits: int, group_size: int, num_steps: int) -> dict[Place, Tensor]:
    """Those that the learner's `awq` finds for each of the engine's matrices, from the beginning of the calibration
    text."""
    inputs = {place: recorded_inputs()[f"{place[0]}.{KINDS[place[1]][0]}"][:NUM_CALIBRATION] for place in PLACES}
    return {place: awq(matrix(place), inputs[place].clone(), bits, group_size, num_steps) for place in PLACES}


def by_kind(factors: Mapping[Place, Tensor]) -> dict[str, tuple[int, float]]:
    """Of each kind of matrix: in how many layers factors are not all 1, and the largest factor over the smallest."""
    kinds: dict[str, list[float]] = {}
    for (_, kind), each in factors.items():
        kinds.setdefault(kind, []).append(float(each.max() / each.min()))
    return {kind: (sum(ratio > 1 for ratio in ratios), max(ratios)) for kind, ratios in kinds.items()}


@cache
def kept_columns(name: str, shares: tuple[float, ...], bits: int, group_size: int) -> dict[str, list[float]]:
    """The output's error when a share of the columns stays as it is: chosen by three rules."""
    weight: Tensor = weight_of(name)
    x = recorded_inputs()[name]
    groups = weight.unflatten(1, (-1, group_size))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = (high - low) / (2**bits - 1)
    rounded = (((groups - low) / scales).round() * scales + low).flatten(1)
    orders = {
        "at random": torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(0)),
        "largest weights": weight.abs().mean(0).argsort(descending=True),
        "largest inputs": x.abs().mean(0).argsort(descending=True),
    }
    errors: dict[str, list[float]] = {rule: [] for rule in orders}
    for rule, order in orders.items():
        for share in shares:
            mixed, kept = rounded.clone(), order[: round(share * len(order))]
            mixed[:, kept] = weight[:, kept]
            errors[rule].append(relative_error(mixed, name, x))
    return errors


def fresh_inputs(name: str) -> Float[Tensor, "T I"]:
    """What the layer is given for the text on which perplexity is measured."""
    return recorded_inputs(is_calibration=False)[name]


def inverse_factor(x: Float[Tensor, "T I"], damping: float = 0.01) -> Float[Tensor, "I I"]:
    """The upper triangular U with U^T U the inverse of x^T x, damped."""
    hessian = x.double().T @ x.double()
    hessian += damping * hessian.diagonal().mean() * torch.eye(len(hessian))
    upper: Tensor = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    return upper.float()


def errors_by_tokens(
    gptq: Callable[..., Tensor], name: str, counts: tuple[int, ...], bits: int, group_size: int
) -> tuple[list[float], list[float]]:
    """The output's error on the calibration text and on a fresh one, calibrated on its first `counts` tokens."""
    known, fresh = [], []
    for count in counts:
        x = recorded_inputs()[name][:count].clone()
        rounded = gptq(weight_of(name), inverse_factor(x), bits, group_size)
        known.append(relative_error(rounded, name, x))
        fresh.append(relative_error(rounded, name, fresh_inputs(name)))
    return known, fresh
