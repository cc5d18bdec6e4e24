"""Add the residual and normalise, in one pass over memory.

    h = x + residual        y = h / sqrt(mean(h^2) + eps) * weight        (RMSNorm, arXiv:1910.07467, eq. 4)

A layer needs both: y goes into the next projection, h is the residual of the next addition. Done separately, h would be
written and read once more. The sum is rounded to the tensors' dtype before it is normalised, so that y belongs to the h
that is handed on.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, row_tile, tl, triton
from twophase_kernels.arguments import FLOATS, check_arguments


@triton.jit(do_not_specialize=["num_rows"])
def rmsnorm_residual_kernel(
    x_ptr,  # [num_rows, N]
    residual_ptr,  # [num_rows, N] or None
    weight_ptr,  # [N]
    y_ptr,  # [num_rows, N] contiguous
    residual_out_ptr,  # [num_rows, N] contiguous; not used without a residual
    x_row_stride,
    residual_row_stride,
    num_rows,
    eps,
    N: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_ROWS whole rows, held in registers between the two uses."""
    # int64: a long prefill has more than 2^31 elements.
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    offs_n = tl.arange(0, BLOCK_N)
    mask_n = offs_n < N
    mask = (rows < num_rows)[:, None] & mask_n[None, :]
    out_offs = rows[:, None] * N + offs_n[None, :]
    h = tl.load(x_ptr + rows[:, None] * x_row_stride + offs_n[None, :], mask=mask, other=0.0)
    if residual_ptr is not None:
        residual_offs = rows[:, None] * residual_row_stride + offs_n[None, :]
        residual = tl.load(residual_ptr + residual_offs, mask=mask, other=0.0)
        h = (h.to(tl.float32) + residual.to(tl.float32)).to(h.dtype)
        tl.store(residual_out_ptr + out_offs, h, mask=mask)
    h = h.to(tl.float32)
    # The square of a half-precision activation overflows half precision: everything from here on is fp32.
    mean_square = tl.sum(h * h, axis=1) / N
    y = h * tl.rsqrt(mean_square + eps)[:, None]
    weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    tl.store(y_ptr + out_offs, (y * weight[None, :]).to(y_ptr.dtype.element_ty), mask=mask)


def rmsnorm_residual(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(RMSNorm of x + residual, x + residual). Inputs are left as they are; does not wait for the device.

    Args:
        x: [T, N], rows contiguous, N at most 65,536.
        residual: [T, N] of x's dtype, rows contiguous, or None to normalise x itself.
        weight: [N], contiguous, any float dtype.
        eps: Added to the mean square.

    Returns:
        (y, residual_out), both [T, N] in x's dtype; without a residual, residual_out is x itself.

    Raises:
        ValueError: An argument that breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    check_arguments(x=(x, "T | N", FLOATS), residual=(residual, "T | N", x.dtype), weight=(weight, "N", FLOATS))
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, got {eps}.")
    num_rows, width = x.shape
    block_rows, block_n, num_warps = row_tile(width)
    y = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    residual_out = x if residual is None else torch.empty_like(y)
    if num_rows:
        rmsnorm_residual_kernel[(cdiv(num_rows, block_rows),)](
            x, residual, weight, y, residual_out,
            x.stride(0), x.stride(0) if residual is None else residual.stride(0), num_rows, eps,
            N=width, BLOCK_ROWS=block_rows, BLOCK_N=block_n, num_warps=num_warps,
        )  # fmt: skip
    return y, residual_out


def rmsnorm_residual_reference(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Reference for `rmsnorm_residual` in plain torch."""
    h = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    mean_square = h.float().square().mean(-1, keepdim=True)
    y = h.float() * torch.rsqrt(mean_square + eps) * weight.float()
    return y.to(x.dtype), h
