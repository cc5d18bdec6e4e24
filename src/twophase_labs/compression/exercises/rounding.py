"""6.2: weights rounded to the nearest of a few values, group by group."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from twophase_labs.machine.checks import Draw, compare, finite, plain, reject, unchanged
from twophase_labs.machine.exercise import exercise

QUANTIZE = exercise("6.2", "Round to nearest", "quantize", points=4, minutes=18, lines=6, difficulty=2)
QUANTIZE.objective = "store a weight in few bits: codes, and a scale and a minimum for each group"
QUANTIZE.hints = (
    "Give the weight an axis for its groups, [O, G, group_size], and reduce over the last one. `unflatten` makes "
    "the axis, `flatten` takes it away again.",
    "The smallest weight of a group gets code 0, the largest 2 ** bits - 1. So a step from code to code is (maximum "
    "- minimum) / (2 ** bits - 1). Where it is 0, divide by something else.",
    "groups = weight.float().unflatten(1, (-1, group_size))\n"
    "minima, maxima = ...\n"
    "scales = ...                              # [O, G]\n"
    "steps = torch.where(scales > 0, ...)      # what is divided by: never 0\n"
    "codes = ((groups - ...) / ...).round()\n"
    "return codes.flatten(1).to(torch.uint8), scales, minima",
)

AXES, GROUP_AXES = ("output", "input"), ("output", "group")


class FiniteOnly(TorchDispatchMode):
    """Rejects NaN or infinity made an integer: no error, and another number on another processor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made, cast = func(*args, **(kwargs or {})), torch.ops.aten
        given = {cast._to_copy.default: args[0], cast.copy_.default: args[-1]}.get(func)
        if given is not None and not made.is_floating_point() and not bool(given.isfinite().all()):
            reject("a code was made of NaN or infinity", "0 / 0 is NaN; as an integer it can be any number.")
        return made


def quantized(answer: Any, weight: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    with unchanged(weight=weight):
        result = answer.quantize(weight, bits, group_size)
    if not isinstance(result, tuple | list) or len(result) != 3:
        reject("quantize must return three tensors: codes, scales, minima")
    codes, scales, minima = result
    num_outputs, num_inputs = weight.shape
    what = f"of a weight {[num_outputs, num_inputs]} in groups of {group_size}"
    shapes = {"codes": (codes, [num_outputs, num_inputs])}
    for name, each in (("scales", scales), ("minima", minima)):
        shapes[name] = (each, [num_outputs, num_inputs // group_size])
    for name, (each, shape) in shapes.items():
        if not isinstance(each, torch.Tensor):
            reject(f"the {name} are {type(each).__name__}, expected a tensor")
        if list(each.shape) != shape:
            reject(f"the {name} {what} have shape {list(each.shape)}, expected {shape}")
    return plain(codes), plain(scales), plain(minima)


def groups_of(weight: Tensor, group_size: int) -> list[list[list[float]]]:
    """weight[o][g], a list of numbers."""
    rows = weight.double().tolist()
    return [[row[i : i + group_size] for i in range(0, len(row), group_size)] for row in rows]


@QUANTIZE.check(
    "has a code per weight, a scale and a minimum per group",
    num_outputs=(1, 3, 2),
    num_groups=(1, 2, 9),
    group_size=(4, 8, 2),
)
def has_its_shapes(answer: Any, draw: Draw, num_outputs: int, num_groups: int, group_size: int) -> None:
    """Groups are neighbours in a row: inputs 0 to group_size - 1 are group 0 of that output."""
    quantized(answer, draw.normal(num_outputs, num_groups * group_size), 4, group_size)


@QUANTIZE.check("returns uint8 codes, float32 scales and minima", dtype=(torch.float32, torch.bfloat16))
def has_its_dtypes(answer: Any, draw: Draw, dtype: torch.dtype) -> None:
    """Compute in float32, whatever the weight's dtype is: `weight.float()`. Codes become uint8 last: int8 ends at
    127."""
    codes, scales, minima = quantized(answer, draw.normal(3, 8, dtype=dtype), 4, 4)
    given = str(dtype).removeprefix("torch.")
    for name, got, wanted in (
        ("codes", codes, torch.uint8),
        ("scales", scales, torch.float32),
        ("minima", minima, torch.float32),
    ):
        if got.dtype != wanted:
            names = [str(each).removeprefix("torch.") for each in (got.dtype, wanted)]
            reject(f"of a {given} weight, the {name} are {names[0]}, expected {names[1]}")


@QUANTIZE.check("begins at each group's minimum", num_outputs=(1, 3, 5), num_groups=(1, 4, 3), group_size=(4, 4, 64))
def begins_at_the_minimum(answer: Any, draw: Draw, num_outputs: int, num_groups: int, group_size: int) -> None:
    """Of each group of each output its own minimum, also where all weights are positive."""
    weight = draw.normal(num_groups * group_size, num_outputs).T + 0.7  # as a transposed matrix lies in memory
    _, _, minima = quantized(answer, weight, 4, group_size)
    expected = torch.tensor([[min(group) for group in row] for row in groups_of(weight, group_size)])
    compare(minima, expected, what="the minima", axes=GROUP_AXES, rtol=1e-6, atol=0)


@QUANTIZE.check(
    "ends at each group's maximum",
    {"bits": 2, "group_size": 4},
    {"bits": 4, "group_size": 16},
    {"bits": 8, "group_size": 32},
    {"bits": 4, "group_size": 8, "size": 1e-9},
)
def ends_at_the_maximum(answer: Any, draw: Draw, bits: int, group_size: int, size: float = 1.0) -> None:
    """Between the first of 2 ** bits codes and the last there are 2 ** bits - 1 steps. A small scale stays as small
    as it is."""
    weight = size * draw.normal(3, 4 * group_size)
    _, scales, _ = quantized(answer, weight, bits, group_size)
    expected = [[(max(group) - min(group)) / (2**bits - 1) for group in row] for row in groups_of(weight, group_size)]
    what = f"the scales for {bits} bits"
    compare(scales, torch.tensor(expected), what=what, axes=GROUP_AXES, rtol=1e-4, atol=0)


@QUANTIZE.check(
    "rounds every weight to the nearest value",
    {"bits": 2, "group_size": 4},
    {"bits": 3, "group_size": 16, "middle": 3.0},
    {"bits": 4, "group_size": 64},
    {"bits": 8, "group_size": 32, "middle": -1.0},
    {"bits": 4, "group_size": 16, "size": 1e-7},
)
def rounds_to_nearest(
    answer: Any, draw: Draw, bits: int, group_size: int, middle: float = 0.0, size: float = 1.0
) -> None:
    """The code is the number of steps from the minimum to the weight, rounded: a conversion to an integer cuts off
    instead. A small scale is not made larger. Is the code of every group made with that group's own scale and
    minimum?"""
    # No weight is further from its value than half a scale.
    weight = middle + size * draw.normal(4, 3 * group_size)
    codes, scales, minima = quantized(answer, weight, bits, group_size)
    finite(scales, "the scales", GROUP_AXES)
    if int(codes.max()) > 2**bits - 1 or int(codes.min()) < 0:
        reject(f"the codes reach from {int(codes.min())} to {int(codes.max())}; {bits} bits hold 0 to {2**bits - 1}")
    wide = [each.double().repeat_interleave(group_size, dim=1) for each in (scales, minima)]
    value = codes.double() * wide[0] + wide[1]
    error, limit = (value - weight.double()).abs(), wide[0] * 0.501 + 1e-6 * weight.abs()
    if bool((error > limit).any()):
        at = tuple((error > limit).nonzero()[0].tolist())
        where = f"output {at[0]}, input {at[1]}"
        reject(
            f"at {where}, the weight {float(weight[at]):.4g} becomes code {int(codes[at])}, which is "
            f"{float(value[at]):.4g}: off by {float(error[at] / wide[0][at]):.2f} of a scale; the nearest is within 0.5"
        )


@QUANTIZE.check("keeps a group of equal weights as it is", constant=(0.0, 0.25, -3.0))
def keeps_constant_groups(answer: Any, draw: Draw, constant: float) -> None:
    """Its scale is 0, and 0 / 0 is NaN. Divide by 1 there, and keep its minimum."""
    weight = draw.normal(3, 12)
    weight[1, 4:8] = constant
    with FiniteOnly():
        codes, scales, minima = quantized(answer, weight, 4, 4)
    finite(scales, "the scales", GROUP_AXES)
    finite(minima, "the minima", GROUP_AXES)
    value = codes[1, 4:8].double() * scales[1, 1].double() + minima[1, 1].double()
    expected = weight[1, 4:8].double()
    compare(value, expected, what=f"a group of four times {constant:g}, restored,", axes=("input",), rtol=1e-6)
