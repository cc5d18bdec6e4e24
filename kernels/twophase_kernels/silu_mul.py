"""The gate of a SwiGLU feed-forward layer (arXiv:2002.05202, eq. 5), for gate and up projections side by side.

    out = silu(gate) * up        silu(g) = g * sigmoid(g)

In one pass, so that neither sigmoid nor silu ever goes to memory.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, next_power_of_2, tl, triton
from twophase_kernels.arguments import FLOATS, check_arguments

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def silu_mul_kernel(
    gate_up_ptr,  # [T, 2 * WIDTH]: gate, then up
    out_ptr,  # [T, WIDTH] contiguous
    gate_up_row_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: BLOCK neighbouring elements of one row."""
    row = tl.program_id(0).to(tl.int64)  # a long prefill has more than 2^31 elements
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < WIDTH
    row_ptr = gate_up_ptr + row * gate_up_row_stride
    gate = tl.load(row_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row_ptr + WIDTH + offs, mask=mask, other=0.0).to(tl.float32)
    # exp of -|gate| cannot overflow; sigmoid(-g) = exp(-g) * sigmoid(g).
    decay = tl.exp2(-tl.abs(gate) * LOG2_E)
    sigmoid = tl.where(gate >= 0, 1.0, decay) / (1.0 + decay)
    tl.store(out_ptr + row * WIDTH + offs, (gate * sigmoid * up).to(out_ptr.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [T, 2I], rows contiguous: -> [T, I]. Does not wait for the device.

    Raises:
        ValueError: gate_up breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    check_arguments(gate_up=(gate_up, "T | 2I", FLOATS))
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must be [T, 2I], gate and up side by side, got {list(gate_up.shape)}.")
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        block, num_warps = row_block(width)
        silu_mul_kernel[(num_rows, cdiv(width, block))](
            gate_up, out, gate_up.stride(0), WIDTH=width, BLOCK=block, num_warps=num_warps
        )
    return out


def row_block(width: int) -> tuple[int, int]:
    """(elements, warps) of a program: 8 elements per thread, one 16-byte load from each half of a row."""
    block = min(next_power_of_2(width), 1024)
    return block, max(1, block // 256)


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Reference for `silu_mul` in plain torch."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)
