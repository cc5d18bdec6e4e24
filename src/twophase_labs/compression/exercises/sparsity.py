"""6.12 and 6.13 Zeros: what they save in time, and two of four."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, plain_tensor, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number


def share_of_zeros_kept() -> float:
    from twophase_labs.compression.zeros import sparse_over_dense

    return sparse_over_dense()


GUESS_6_12 = exercise("6.12", "Nine of ten are zero", kind="prediction", points=1, minutes=2, time_limit_s=60)
GUESS_6_12.objective = "expect what a product with a sparse matrix costs"
GUESS_6_12.hints = ("A tenth of the products are left. What else does the processor have to read for each of them?",)
GUESS_6_12.question = Number(
    share_of_zeros_kept,
    factor=1.6,
    unit="times the dense product",
    hint="For each weight that is left, its column is read too, and the element of x that the column names.",
)

SPARSE = exercise("6.13", "Two of four", "two_of_four", points=3, minutes=9, lines=4, difficulty=2, is_extra=True)
SPARSE.objective = "prune so that the hardware knows in advance how many weights are left, and where to look"
SPARSE.hints = (
    "`unflatten(1, (-1, 4))` makes [O, I / 4, 4] of a weight. In which dimension do the four compete, and by what?",
    "`sort(descending=True, stable=True)` leaves equals in their order. The two that win may come in any order of "
    "place: sort once more, by place.",
    "fours = weight.unflatten(1, (-1, 4))\n"
    "order = ...                              # places by falling magnitude, [O, I / 4, 4]\n"
    "places = order[..., :2].sort(-1).values\n"
    "values = fours.gather(...)\n"
    "return values.flatten(1), places.flatten(1)",
)

AXES = ("output", "kept")


def kept(answer: Any, weight: Tensor) -> tuple[Tensor, Tensor]:
    with unchanged(weight=weight):
        result = answer.two_of_four(weight)
    if not isinstance(result, tuple | list) or len(result) != 2:
        reject("two_of_four must return two things: the values and their places")
    half = [weight.shape[0], weight.shape[1] // 2]
    for name, tensor in zip(("values", "places"), result, strict=True):
        if not isinstance(tensor, torch.Tensor) or list(tensor.shape) != half:
            got = list(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            reject(f"the {name} are {got} for a weight {list(weight.shape)}, expected a tensor {half}")
    values, places = (plain_tensor(each) for each in result)
    if places.dtype.is_floating_point or places.dtype == torch.bool:
        reject(f"the places are {str(places.dtype).removeprefix('torch.')}, expected whole numbers from 0 to 3")
    return values, places


def oracle(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Four by four, with lists."""
    values, places = [], []
    for row in weight.tolist():
        fours = [row[start : start + 4] for start in range(0, len(row), 4)]
        chosen = [sorted(by_size(four)[:2]) for four in fours]
        values.append([four[j] for four, two in zip(fours, chosen, strict=True) for j in two])
        places.append([j for two in chosen for j in two])
    shape = weight.shape[0], weight.shape[1] // 2
    return torch.tensor(values, dtype=weight.dtype).view(shape), torch.tensor(places).view(shape)


def holds(answer: Any, weight: Tensor) -> None:
    values, places = kept(answer, weight)
    wanted_values, wanted_places = oracle(weight)
    compare(places, wanted_places, what="the places", axes=AXES, any_dtype=True)
    compare(values, wanted_values, what="the values", axes=AXES, rtol=0, atol=0, same_dtype=True)


def by_size(four: list[float]) -> list[int]:
    """Places by falling magnitude; equals as they stand."""
    return sorted(range(4), key=lambda place: -abs(four[place]))


def distinct(draw: Draw, num_outputs: int, num_inputs: int) -> Tensor:
    """No two magnitudes are alike, all are positive."""
    size = num_outputs * num_inputs
    return (1 + draw.permutation(size).float()).view(num_outputs, num_inputs) / 8


@SPARSE.check("keeps the two largest of each four", num_outputs=(1, 3, 5), num_inputs=(4, 8, 36))
def keeps_the_largest(answer: Any, draw: Draw, num_outputs: int, num_inputs: int) -> None:
    """Each four neighbours of a row keep two. Places are 0 to 3 within the four, in ascending order, and values are
    in the order of their places."""
    holds(answer, distinct(draw, num_outputs, num_inputs))


@SPARSE.check("goes by magnitude", num_outputs=(1, 4), num_inputs=(4, 20))
def looks_at_magnitudes(answer: Any, draw: Draw, num_outputs: int, num_inputs: int) -> None:
    """A weight of -3 matters more than one of 2: compare magnitudes, and keep the sign."""
    weight = distinct(draw, num_outputs, num_inputs)
    signs = 2 * draw.integers(0, 2, num_outputs, num_inputs) - 1
    signs[0, :4] = torch.tensor([-1, 1, -1, 1])
    holds(answer, weight * signs)


@SPARSE.check("takes the first of equals")
def takes_the_first_of_equals(answer: Any, draw: Draw) -> None:
    """`topk` may take either of two equals; a stable sort takes the first. And a place may well hold a zero: there
    are always two."""
    fours = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 4)  # all 81 of them: nearly all have ties
    holds(answer, fours[draw.permutation(len(fours))].reshape(3, -1))


@SPARSE.check("keeps the dtype", dtype=(torch.float64, torch.bfloat16))
def keeps_the_dtype(answer: Any, draw: Draw, dtype: torch.dtype) -> None:
    """The values are weights as they were: no rounding, no other dtype."""
    holds(answer, (distinct(draw, 2, 8) / 16).to(dtype))
