"""Runs a learner's kernel on memory that tells when it is misused.

Every tensor gets memory of its own, with a margin on both sides: what a kernel reads there is poison (NaN), what it
writes there is noticed afterwards. That works compiled and interpreted. In the interpreter each load and store is also
looked at before it happens, so that an access outside is named: which program, which line of the kernel, which element.

triton-viz 3.0 was tried first. Its sanitizer finds the same accesses, but prints them and ends the process, and it
brings some 200 MB of packages (an SMT solver, Arrow, Flask, Cairo) for what is fifty lines here.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch

from twophase_kernels import mode
from twophase_labs.machine.checks import Rejected, reject
from twophase_labs.machine.guard import is_learners_file
from twophase_labs.machine.kernels import device

MIN_MARGIN_BYTES = 4096


@dataclass(frozen=True)
class Region:
    """One tensor's memory: poison, the tensor, poison; `margin` elements on each side."""

    name: str
    whole: torch.Tensor
    margin: int
    shape: tuple[int, ...]
    axes: tuple[str, ...]

    @property
    def tensor(self) -> torch.Tensor:
        return self.whole[self.margin : self.whole.numel() - self.margin].view(self.shape)

    @property
    def start(self) -> int:
        return self.tensor.data_ptr()

    @property
    def num_bytes(self) -> int:
        return self.tensor.numel() * self.whole.element_size()

    def has_intact_margins(self) -> bool:
        ends = torch.cat([self.whole[: self.margin], self.whole[self.whole.numel() - self.margin :]])
        poison = _poison(self.whole.dtype)
        return bool((ends.isnan() if poison != poison else ends == poison).all())

    def distance(self, address: int) -> int:
        """Bytes from the tensor's memory; 0 inside."""
        return max(self.start - address, address - (self.start + self.num_bytes - 1), 0)

    def describe(self, address: int) -> str:
        """'page 8, head 0, slot 0, dim 3; the last page is 7' for an element that is not there."""
        index = (address - self.start) // self.whole.element_size()
        if not self.shape:
            return f"element {index} of 1"
        rows = self.tensor[0].numel() if len(self.shape) > 1 else 1
        outer, rest = divmod(index, max(1, rows))
        names = self.axes if len(self.axes) == len(self.shape) else tuple(f"axis {i}" for i in range(len(self.shape)))
        inner = [] if len(self.shape) == 1 else [int(i) for i in np.unravel_index(rest, self.shape[1:])]
        place = ", ".join(f"{name} {i}" for name, i in zip(names, [outer, *inner], strict=True))
        return f"{place}; the last {names[0]} is {self.shape[0] - 1}"


def run_guarded(
    launch: Callable[..., object],
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    *,
    axes: Mapping[str, Sequence[str]] | None = None,
    mutable: Sequence[str] = (),
) -> dict[str, torch.Tensor]:
    """Call `launch(**tensors)` with copies of all tensors on the kernels' device; return what they hold afterwards.

    Args:
        launch: Launches the kernel; gets every input and output by name. A kernel may touch no other memory.
        inputs, outputs: CPU tensors. Outputs are given full of NaN (integers: zeros): what is not written shows.
        axes: Names of a tensor's axes, for messages.
        mutable: Inputs that the kernel is meant to change.

    Raises:
        Rejected: an access outside of a tensor, or an input changed that is not in `mutable`.
    """
    filled = {name: torch.full_like(t, _poison(t.dtype)) for name, t in outputs.items()}
    tensors = {**{name: t.contiguous() for name, t in inputs.items()}, **filled}
    regions = {name: _region(name, t, tuple((axes or {}).get(name, ()))) for name, t in tensors.items()}
    # A wrong kernel computes inf - inf or overflows, which numpy would warn about beside the verdict.
    with _watching(list(regions.values())), np.errstate(all="ignore"):
        launch(**{name: region.tensor for name, region in regions.items()})
    for name, region in regions.items():
        if not region.has_intact_margins():
            reject(f"the kernel writes outside of `{name}`", "A store needs a mask too, and the right strides.")
    after = {name: region.tensor.cpu().clone() for name, region in regions.items()}
    for name in inputs:
        if name not in mutable and not _is_same(after[name], tensors[name]):
            reject(f"the kernel changes its input `{name}`")
    return after


def _poison(dtype: torch.dtype) -> int | float:
    # A poisoned page id would send a compiled kernel anywhere in the device's memory; 0 is a page that exists.
    return float("nan") if dtype.is_floating_point else 0


def _region(name: str, tensor: torch.Tensor, axes: tuple[str, ...]) -> Region:
    # As much again on each side, so that a kernel that is off by a whole tensor is still told which one it missed.
    margin = max(tensor.numel(), MIN_MARGIN_BYTES // tensor.element_size())
    margin += -margin % 16  # keep the alignment that a kernel may rely on
    whole = torch.full((tensor.numel() + 2 * margin,), _poison(tensor.dtype), dtype=tensor.dtype, device=device)
    region = Region(name, whole, margin, tuple(tensor.shape), axes)
    region.tensor.copy_(tensor)
    return region


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else torch.equal(one, other)


@contextmanager
def _watching(regions: Sequence[Region]) -> Iterator[None]:
    """Look at each load and store of interpreted kernels before it happens; compiled ones cannot be watched.

    A masked load without `other` leaves undefined what is masked, where the interpreter has zeros: here it is NaN.
    """
    if mode() != "interpreted":
        yield
        return
    # Not a public interface, and the only place that sees addresses; the tests notice if it changes.
    from triton.runtime.interpreter import interpreter_builder as builder

    load, store = builder.create_masked_load, builder.create_masked_store

    def checked_load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        _check(pointers, mask, regions, "reads", builder.grid_idx)
        return load(pointers, mask, _undefined(pointers) if other is None else other, *rest)

    def checked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _check(pointers, mask, regions, "writes", builder.grid_idx)
        return store(pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    try:
        yield
    finally:
        del builder.create_masked_load, builder.create_masked_store


def _undefined(pointers: Any) -> Any:
    """NaN for each element behind the pointers; None, the interpreter's zeros, for whole numbers."""
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    element = pointers.get_element_ty()
    if not element.is_floating():
        return None
    stored = _get_np_dtype(element)
    if stored.kind == "f":
        return TensorHandle(np.full_like(pointers.data, np.nan, dtype=stored), element)
    return TensorHandle(np.full_like(pointers.data, -1, dtype=np.int64).astype(stored), element)  # all bits set: a NaN


def _check(pointers: Any, mask: Any, regions: Sequence[Region], verb: str, program: Sequence[int]) -> None:
    addresses = np.atleast_1d(pointers.data).astype(np.int64)[np.atleast_1d(mask.data).astype(bool)]
    if not addresses.size:
        return
    inside = np.zeros(addresses.shape, dtype=bool)
    for region in regions:
        inside |= (addresses >= region.start) & (addresses < region.start + region.num_bytes)
    if inside.all():
        return
    address = int(addresses[~inside][0])
    region = min(regions, key=lambda r: r.distance(address))
    where = "before its start" if address < region.start else "past its end"
    raise Rejected(
        f"program ({', '.join(map(str, program))}) {verb} `{region.name}` {where}: {region.describe(address)}",
        (
            *_kernels_line(sys._getframe(2)),
            f"{int((~inside).sum())} of this access's {inside.size} elements are outside",
        ),
    )


def _kernels_line(frame: FrameType | None) -> tuple[str, ...]:
    """The learner's line that makes the access."""
    import linecache

    while frame is not None and not is_learners_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ()
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return (f"line {frame.f_lineno} of the cell: {text}",)
