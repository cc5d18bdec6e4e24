"""Runs a learner's kernel on memory that tells when it is misused.

Compiled for the CPU, a learner's kernel is checked while it runs, and an access outside of a tensor is named (see
machine/kernels.py). On a GPU nothing looks at accesses. So every tensor gets memory of its own, with a margin on both
sides: what a kernel reads there is poison (NaN), and what it writes there is noticed afterwards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from twophase_labs.machine.checks import reject
from twophase_labs.machine.kernels import device

MIN_MARGIN_BYTES = 4096


MARK = 0.40625  # stands where nothing was stored


@dataclass(frozen=True)
class Region:
    """One tensor's memory: poison, the tensor, poison; `margin` elements on each side."""

    whole: torch.Tensor
    margin: int
    shape: tuple[int, ...]

    @property
    def tensor(self) -> torch.Tensor:
        return self.whole[self.margin : self.whole.numel() - self.margin].view(self.shape)

    def has_intact_margins(self) -> bool:
        ends = torch.cat([self.whole[: self.margin], self.whole[self.whole.numel() - self.margin :]])
        poison = _poison(self.whole.dtype)
        return bool((ends.isnan() if poison != poison else ends == poison).all())


def run_guarded(
    launch: Callable[..., object],
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    *,
    mutable: Sequence[str] = (),
) -> dict[str, torch.Tensor]:
    """Call `launch(**tensors)` with copies of all tensors on the kernels' device; return what they hold afterwards.

    Args:
        launch: Launches the kernel; gets every input and output by name. A kernel may touch no other memory.
        inputs, outputs: CPU tensors. Outputs are given full of NaN (integers: zeros): what is not written shows.
        mutable: Inputs that the kernel is meant to change.

    Raises:
        Rejected: a write outside of a tensor, or an input changed that is not in `mutable`.
    """
    filled = {name: torch.full_like(t, _poison(t.dtype)) for name, t in outputs.items()}
    tensors = {**{name: t.contiguous() for name, t in inputs.items()}, **filled}
    regions = {name: _region(tensor) for name, tensor in tensors.items()}
    launch(**{name: region.tensor for name, region in regions.items()})
    for name, region in regions.items():
        if not region.has_intact_margins():
            reject(f"the kernel writes outside of `{name}`", "A store needs a mask too, and the right strides.")
    after = {name: region.tensor.cpu().clone() for name, region in regions.items()}
    for name in inputs:
        if name not in mutable and not _is_same(after[name], tensors[name]):
            reject(f"the kernel changes its input `{name}`")
    return after


def require_stored(
    launch: Callable[..., object],
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    name: str,
    rows: Sequence[str],
) -> None:
    """Reject a launch that leaves a whole row of output `name` as it was; `rows` are the rows' names, in order.

    NaN in what `run_guarded` returns does not tell: it may have been computed. So launch again, over other marks.
    """
    marked = {key: torch.full_like(t, MARK) for key, t in outputs.items()}
    after = run_guarded(launch, {**inputs, **marked}, {}, mutable=tuple(outputs))
    for row, values in zip(rows, after[name].flatten(0, -2), strict=True):
        if bool((values == MARK).all()):
            reject(f"{row} is never stored", f"`{name}` holds there what it held before the launch.")


def _poison(dtype: torch.dtype) -> int | float:
    # A poisoned page id would send a compiled kernel anywhere in the device's memory; 0 is a page that exists.
    return float("nan") if dtype.is_floating_point else 0


def _region(tensor: torch.Tensor) -> Region:
    # As much again on each side, so that a kernel that is off by a whole tensor is still told which one it missed.
    margin = max(tensor.numel(), MIN_MARGIN_BYTES // tensor.element_size())
    margin += -margin % 16  # keep the alignment that a kernel may rely on
    whole = torch.full((tensor.numel() + 2 * margin,), _poison(tensor.dtype), dtype=tensor.dtype, device=device)
    region = Region(whole, margin, tuple(tensor.shape))
    region.tensor.copy_(tensor)
    return region


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else torch.equal(one, other)
