"""The check of a kernel's tensors: each has a form.

    sizes = check_arguments(x=(x, "T | N", FLOATS), weight=(weight, "N", FLOATS))

    "N"           contiguous as a whole
    "T | N"       contiguous from N on; rows may lie any distance apart
    "N page |"    with any strides
    "runs O 32"   a number is that size, and a name has the same size wherever it stands

Only shapes, strides, dtypes and devices are looked at, so nothing waits for the device.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from twophase_kernels._triton import MEANING, mode

FLOATS = (torch.float32, torch.float16, torch.bfloat16)  # the kernels' dtypes
NO_SIZES: Mapping[str, int] = {}

Argument = tuple[Tensor | None, str, torch.dtype | tuple[torch.dtype, ...]]


def check_arguments(sizes: Mapping[str, int] = NO_SIZES, /, **arguments: Argument) -> Mapping[str, int]:
    """The sizes of the forms, by name. Every wrapper calls this first.

    Args:
        sizes: Sizes that are known before.
        arguments: (tensor, form, its dtypes) by name; None may stand for any tensor.

    Raises:
        ValueError: A tensor breaks its form, or they are not all on one device, where kernels run in this process. (A
            kernel given a stray CPU pointer crashes the whole CUDA context.)
        KernelsUnavailableError: No kernel can run here, or not in one of the tensors' dtypes.
    """
    found, dtypes, (first, device) = _checked(tuple(sizes.items()), _facts(arguments))
    how = mode(torch.bfloat16 if torch.bfloat16 in dtypes else None)
    if (how == "cuda") == (device.type == "cpu"):
        raise ValueError(
            f"Kernels are {MEANING[how]} in this process, but {first} is on {device}; put every tensor on the "
            f"{'GPU' if how == 'cuda' else 'CPU'}."
        )
    return found


def check_forms(sizes: Mapping[str, int] = NO_SIZES, /, **arguments: Argument) -> Mapping[str, int]:
    """`check_arguments` where no kernel is launched: on any device, and without triton."""
    return _checked(tuple(sizes.items()), _facts(arguments))[0]


def _facts(arguments: Mapping[str, Argument]) -> tuple[tuple[Any, ...], ...]:
    return tuple(
        [
            (name, form, dtypes, tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
            for name, (tensor, form, dtypes) in arguments.items()
            if tensor is not None
        ]
    )


@lru_cache(4096)  # a look-up takes a tenth of the time of checking
def _checked(
    sizes: tuple[tuple[str, int], ...], facts: tuple[tuple[Any, ...], ...]
) -> tuple[Mapping[str, int], Collection[torch.dtype], tuple[str, torch.device]]:
    """(The sizes, all dtypes, the first argument's name and device)."""
    known = dict(sizes)
    first, *_, first_device = facts[0]
    for name, *_, device in facts:
        if device != first_device:
            raise ValueError(f"{name} must be where {first} is ({first_device}), got {device}.")
    for name, form, dtypes, dtype, shape, strides, _ in facts:
        before, _, after = form.rpartition("|")
        dims, num_strided = (*before.split(), *after.split()), len(before.split())
        allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
        named = {dim: size for dim, size in zip(dims, shape, strict=False) if not dim.isdecimal()}
        new = named | known
        wanted = tuple(int(dim) if dim.isdecimal() else new.get(dim) for dim in dims)
        if dtype not in allowed or shape != wanted or not _is_contiguous(shape[num_strided:], strides[num_strided:]):
            words = " or ".join(str(each).removeprefix("torch.") for each in allowed)
            names = ", ".join(f"{dim}={known[dim]}" if dim in known else dim for dim in dims)
            rest = f", contiguous from {dims[num_strided]} on" if 0 < num_strided < len(dims) else ""
            raise ValueError(
                f"{name} must be {'' if num_strided else 'contiguous '}{words} [{names}]{rest}, got {dtype} "
                f"{list(shape)} with strides {strides}."
            )
        known = new
    return known, {fact[3] for fact in facts}, (first, first_device)


def _is_contiguous(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step and size != 1:
            return shape.numel() == 0
        step *= size
    return True
