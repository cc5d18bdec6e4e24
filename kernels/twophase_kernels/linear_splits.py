"""Shared by the linear kernels: tiles, and the columns of a weight split over several programs.

A weight [O, I] gives few tiles of outputs: 32 for O = 4096, where a GPU has room for several hundred programs. So the
columns of each are split, and with them the sum over I. Atomic additions would end in any order and with them the last
bits of the result. Instead each split writes its partial sum, fp32 [splits, T, O], and a second launch adds them up in
the order of the splits: the same call gives the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, new_workspace, next_power_of_2, tl, triton
from twophase_kernels.gpu import num_multiprocessors

MAX_SPLITS = 16
MIN_STEPS_PER_SPLIT = 4  # as many as the pipeline holds
SUM_BLOCK = 512


@dataclass(frozen=True, slots=True)
class LinearTiles:
    """How one program of a linear kernel is laid out.

    Attributes:
        block_o: Outputs, rows of the weight; the rows of the matrix instruction.
        block_t: Tokens; its columns.
        block_i: Columns of the weight per step of the loop.
        num_warps: Warps that share the tile.
        num_stages: Triton's pipeline depth; n stages keep n - 1 tiles in shared memory.
        max_registers: Per thread, on NVIDIA; 0: the compiler chooses. Then it may spill a few of them for the sake of
            one more program per SM; told a number, it uses that up, and may spill a few more.
    """

    block_o: int
    block_t: int
    block_i: int
    num_warps: int
    num_stages: int
    max_registers: int = 0

    @property
    def options(self) -> dict[str, int]:
        """Launch options."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options | ({"maxnreg": self.max_registers} if self.max_registers else {})

    def grid(self, num_tokens: int, num_outputs: int, num_splits: int) -> tuple[int, int, int]:
        """Programs that read the same weights are neighbours."""
        return cdiv(num_tokens, self.block_t), cdiv(num_outputs, self.block_o), num_splits


def choose_num_splits(tiles: LinearTiles, num_tokens: int, num_outputs: int, num_inputs: int, num_sms: int) -> int:
    """Splits of the columns, from shapes alone: as many as make four programs per SM, rounded down to a power of two.

    Two where partial sums, of many tokens, are large. Each split has a few steps at least. None where every SM has a
    tile: 224 tiles on an H200's 132 SMs take up to a third longer in two splits (4 bits and 16 tokens: 17 % less).
    """
    tiles_of_tokens, tiles_of_outputs, _ = tiles.grid(num_tokens, num_outputs, 1)
    num_tiles = tiles_of_tokens * tiles_of_outputs
    per_sm = 4 if tiles.block_t <= 16 else 2
    wanted = per_sm * num_sms // max(1, num_tiles) if num_tiles < num_sms else 1
    most = min(wanted, cdiv(num_inputs, tiles.block_i) // MIN_STEPS_PER_SPLIT, MAX_SPLITS)
    return next_power_of_2(most + 1) // 2 if most else 1


def in_splits(
    launch: Callable[[tuple[int, int, int], Tensor, Tensor | None], None],
    tiles: LinearTiles,
    shape: tuple[int, int, int],
    num_splits: int | None,
    out: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """out [T, O] of `shape` (T, O, I): by launch(grid, target, bias), over `num_splits` splits of the columns.

    The target of several is [splits, T, O], partial sums without bias. Raises ValueError for a number of splits that is
    not allowed.
    """
    if num_splits is None:
        num_splits = choose_num_splits(tiles, *shape, num_multiprocessors(device))
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits must be 1 to {MAX_SPLITS}, got {num_splits}.")
    if out is None:
        out = torch.empty(shape[:2], dtype=dtype, device=device)
    grid = tiles.grid(*shape[:2], num_splits)
    if out.numel() == 0:
        return out
    if num_splits == 1:
        launch(grid, out, bias)
        return out
    partial = new_workspace(num_splits * out.numel(), device).view(num_splits, *out.shape)
    launch(grid, partial, None)
    sum_splits(partial, bias, out)
    return out


@triton.jit
def sum_splits_kernel(
    partial_ptr,  # fp32 [splits, T, O]
    bias_ptr,  # [O] or None
    out_ptr,  # [T, O]
    numel,  # T * O
    num_outputs,
    NUM_SPLITS: tl.constexpr,  # so that the loop is unrolled, and all its loads are under way before the first addition
    BLOCK: tl.constexpr,
):
    """One program: BLOCK neighbouring results."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < numel
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(NUM_SPLITS):
        total += tl.load(partial_ptr + split * numel + offs, mask=mask, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + offs % num_outputs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, total.to(out_ptr.dtype.element_ty), mask=mask)


def sum_splits(partial: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out[t, o] = the sum over s of partial[s, t, o], in the order of s, + bias[o].

    Shapes, fp32 [splits, T, O], [O] and [T, O], are not checked: the linear kernels make the tensors.
    """
    if out.numel():
        sum_splits_kernel[(cdiv(out.numel(), SUM_BLOCK),)](
            partial, bias, out, out.numel(), out.shape[1], NUM_SPLITS=len(partial), BLOCK=SUM_BLOCK, num_warps=4
        )
