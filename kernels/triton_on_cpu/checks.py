"""Checked launches: an access outside the tensors, or an endless loop, becomes a Python error for a learner.

The kernel verifies each access against the extents of its arguments, leaves out a wrong one and reports the first.
The programs run on the pool's threads while this one waits, so that it can stop them when their time is over, or at an
interrupt from the keyboard.
"""

import ctypes
import linecache
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from triton_on_cpu.errors import AssertionFailedError, OutOfBoundsError, TimeLimitError
from triton_on_cpu.pool import list_of, num_threads, pool

WAIT_NS = 50_000_000  # between two looks at the clock and at the keyboard
POINTERS_AT = 24  # `launch.extents` in runtime.h
VERBS = {"load": "reads", "store": "writes", "atomic": "updates"}  # by `Site.what`


class Extent(ctypes.Structure):
    """As in runtime.h, like the structure below."""

    _fields_ = (("base", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class Fault(ctypes.Structure):
    _fields_ = (
        ("failed", ctypes.c_int32),
        ("site", ctypes.c_int32),
        ("program", ctypes.c_int32 * 3),
        ("address", ctypes.c_uint64),
    )


def with_checks(packed: bytes, extents: "ctypes.Array[Extent]", fault: Fault, stop: ctypes.c_int32) -> bytes:
    """A launch as runtime.h has it, with the pointers of a checked one."""
    pointers = struct.pack("<3Q", *map(ctypes.addressof, (extents, fault, stop)))
    return packed[:POINTERS_AT] + pointers + packed[POINTERS_AT + len(pointers) :]


def run_checked(launcher: Any, grid: tuple[int, int, int], packed: bytes, values: Sequence[Any]) -> None:
    """One launch of a kernel that was compiled with checks; `packed` is as of an unchecked one.

    Raises:
        OutOfBoundsError: For the first wrong access; all are left out, and other programs may have run.
        AssertionFailedError: A `tl.device_assert` did not hold.
        TimeLimitError: After the driver's `time_limit_s`.
    """
    tensors = [values[place] if is_pointer else None for place, is_pointer in launcher.places]
    spans = [Extent() if tensor is None else Extent(tensor.data_ptr(), span_bytes(tensor)) for tensor in tensors]
    extents, fault, stop = (Extent * len(spans))(*spans), Fault(site=-1), ctypes.c_int32(0)
    in_time = _run_until(with_checks(packed, extents, fault, stop), stop, launcher.driver.time_limit_s)
    if fault.failed:
        _raise(launcher, fault, tensors)
    if not in_time:
        loop = launcher.metadata.sites[fault.site] if fault.site >= 0 else None
        where = f" in the loop of line {loop['line']} of {os.path.basename(loop['file'])}" if loop else ""
        raise TimeLimitError(
            f"{launcher.metadata.name} over the grid {grid} was still running after {launcher.driver.time_limit_s:g} s "
            f"and was stopped{where}; its writes until then remain. Usually a loop does not end: a `while` whose "
            "condition no statement in it changes, or a `range` whose step or bound is wrong. If the kernel really "
            "takes so long, raise time_limit_s."
        )


def _run_until(packed: bytes, stop: ctypes.c_int32, limit_s: float) -> bool:
    """Whether all programs came to their end in time. In any case none runs any more when this is left."""
    library, end = pool(), time.monotonic() + limit_s  # nothing may fail between the start and the wait
    launches = list_of([packed])
    while not library.pool_start(launches, 1, num_threads()):
        time.sleep(1e-4)  # another thread's launch is running
    finished = False
    try:
        while not (finished := bool(library.pool_wait(WAIT_NS))):
            if time.monotonic() > end:
                stop.value = 1
                return False
        return True
    finally:
        if not finished:  # too late, or interrupted
            stop.value = 1
            while not library.pool_wait(WAIT_NS):
                pass


def span_bytes(tensor: torch.Tensor) -> int:
    """From a tensor's first element to the end of its last."""
    tensor = getattr(tensor, "base", tensor) if not isinstance(tensor, torch.Tensor) else tensor  # triton.reinterpret
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


@dataclass(frozen=True)
class Access:
    """A wrong access: the kernel's name, the program's place in the grid, 'reads' or the like, file and line."""

    kernel: str
    program: tuple[int, ...]
    verb: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.kernel}, program {self.program} {self.verb}"

    @property
    def text(self) -> str:
        """The line; '' if it cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def where(self) -> str:
        place = f"{os.path.basename(self.file)}, line {self.line}"
        return f"\n  {place}: {self.text}" if self.text else f" ({place})"


def _raise(launcher: Any, fault: Fault, tensors: Sequence[Any]) -> NoReturn:
    site, name = launcher.metadata.sites[fault.site], launcher.metadata.name
    verb = VERBS.get(site["what"], "touches")
    # A notebook's cell is a file that only its process can read, and the kernel may have been compiled by another.
    file = site["file"] if linecache.getlines(site["file"]) else launcher.file
    access = Access(name, tuple(fault.program), verb, file, site["line"])
    if site["what"] == "assert":
        raise AssertionFailedError(
            f"{name}, program {access.program}: device_assert failed: {site['message']}.{access.where}"
        )
    if site["argument"] < 0:
        raise OutOfBoundsError(
            f"{access} address {fault.address:#x}, which is in none of the tensors that it was given.{access.where}\n"
            "  Usually a pointer is computed from a wrong one, or an index is taken for a pointer."
        )
    tensor = tensors[site["argument"]]
    element = (fault.address - tensor.data_ptr()) // tensor.element_size()
    raise out_of_bounds(access, launcher.metadata.arguments[site["argument"]], tensor, element)


def out_of_bounds(access: Access, name: str, tensor: torch.Tensor, element: int) -> OutOfBoundsError:
    """The error of an access to an element, counted from the tensor's first."""
    return OutOfBoundsError(
        f"{access} {name}{_index(element, tensor)}, outside of {name}, which has shape {list(tensor.shape)} and "
        f"strides {list(tensor.stride())}.{access.where}\n  {_usual_cause(element, tensor, access.text)}"
    )


def _index(element: int, tensor: torch.Tensor) -> str:
    """Where the kernel reached: the element's number, and, for a plain layout of several dimensions, its index."""
    strides = tensor.stride()
    is_plain = len(strides) > 1 and all(s > 0 for s in strides) and list(strides) == sorted(strides, reverse=True)
    if not is_plain:
        return f"[{element}]" if strides == (1,) else f" + {element}"
    index, rest = [], element
    for stride in strides:
        index.append(rest // stride)
        rest -= index[-1] * stride
    return f" + {element}, that is {index}"


def _usual_cause(element: int, tensor: torch.Tensor, text: str) -> str:
    """The most frequent reason for such an access. `text` is the line, '' if it cannot be read."""
    end = span_bytes(tensor) // tensor.element_size()
    if end == 0:
        return "The tensor is empty: nothing of it may be touched."
    if element < 0:
        return (
            "The index is negative: an index tensor that holds -1, a subtraction below zero, or a 32-bit product that "
            "overflowed (make one factor .to(tl.int64))."
        )
    if element >= 8 * end:
        return (
            "It is far outside: usually a stride is wrong or belongs to another tensor or dimension, two arguments are "
            "swapped, or an index was loaded from memory that holds no index."
        )
    if text and "mask" not in text.partition("#")[0]:
        return (
            "It is just past the end, and this line has no mask: usually the last block is only partly filled. "
            "Give mask=offsets < n (and other= to a load)."
        )
    return (
        "It is just past the end although the line may have a mask: usually the mask compares with another dimension's "
        "size, lacks one dimension, or is <= where < is meant; or a stride is another tensor's, or a size that was "
        "rounded up to a power of two."
    )
