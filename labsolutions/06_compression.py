# %% tags=["setup"]
import torch
import torch.nn.functional as F

from twophase_labs import ____, check, hint, measured, reference, reveal, use
from twophase_labs.machine.kernels import device, tl, triton

torch.set_num_threads(1)


# %% tags=["exercise:6.9"]
@triton.jit
def int4_linear_kernel(
    x_ptr,  # [T, I]
    packed_ptr,  # int32 [O, I / 8]: eight neighbouring codes to a word, the first in its lowest four bits
    scales_ptr,  # [O, G]
    minima_ptr,  # like scales_ptr
    out_ptr,  # [T, O]
    num_tokens,  # T, at most BLOCK_T
    num_inputs,
    num_outputs,
    GROUP: tl.constexpr,  # inputs that share a scale
    BLOCK_T: tl.constexpr,  # rows of a tile of x
    BLOCK_O: tl.constexpr,  # outputs of a program
):
    """One program: BLOCK_O outputs of all rows."""
    offs_t = tl.arange(0, BLOCK_T)
    offs_o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    has_token, has_output = offs_t < num_tokens, offs_o < num_outputs
    num_groups = num_inputs // GROUP
    acc = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    for group in range(num_groups):
        columns = group * GROUP + tl.arange(0, GROUP)
        x_ptrs = x_ptr + offs_t[:, None] * num_inputs + columns[None, :]
        x = tl.load(x_ptrs, mask=has_token[:, None], other=0.0)
        offs_w = offs_o[:, None] * (num_inputs // 8) + (columns // 8)[None, :]  # SOLUTION: [BLOCK_O, GROUP], each code's word
        words = tl.load(packed_ptr + offs_w, mask=has_output[:, None], other=0)
        codes = (words >> (columns % 8 * 4)[None, :]) & 15  # SOLUTION: each code, 0 to 15, out of its word
        offs_s = offs_o * num_groups + group  # SOLUTION: [BLOCK_O], where this group's scale stands for each output
        scale = tl.load(scales_ptr + offs_s, mask=has_output, other=0.0)
        minimum = tl.load(minima_ptr + offs_s, mask=has_output, other=0.0)
        weight = codes.to(tl.float32) * scale[:, None] + minimum[:, None]  # SOLUTION: [BLOCK_O, GROUP], float32
        acc += tl.dot(x, tl.trans(weight.to(x.dtype)), input_precision="ieee")  # SOLUTION: this group's part of the product
    mask = has_token[:, None] & has_output[None, :]
    out_ptrs = out_ptr + offs_t[:, None] * num_outputs + offs_o[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)


# %%
check("6.9")

# %%
# needs: triton
import time
t = time.time()
from twophase_kernels.packed_codes import pack_int4
from twophase_kernels.quantized_linear import int4_linear
from twophase_labs.compression.int4_launch import launch_int4_linear, pack_words, rounded, show_traffic
from twophase_labs.machine.compiled import Compiled, inspect_engine

int4_linear_kernel = use("6.9")
codes, scales, minima = rounded("15.self_attn.q_proj")
x = torch.randn(4, 576)
print(launch_int4_linear(int4_linear_kernel, x, pack_words(codes), scales, minima)[0,:3], int4_linear(x, pack_int4(codes), scales.T.contiguous(), minima.T.contiguous())[0,:3])
print(time.time() - t)
x = x.half()
rows = slice(0, 128)
compiled = Compiled(int4_linear_kernel)
launch_int4_linear(compiled, x, pack_words(codes[rows]), scales[rows], minima[rows])
print(time.time() - t)
engines = inspect_engine(int4_linear, x, pack_int4(codes[rows]), scales[rows].T.contiguous(), minima[rows].T.contiguous(), num_splits=1)
print(time.time() - t)
show_traffic({"yours": compiled.report, "the engine's": engines}, 128 * 576)
for n, r in (("y", compiled.report), ("e", engines)):
    print(n, r.grid, r.num_warps, r.loop_instructions)
    for a in r.global_accesses:
        print(a.source, a.instruction, a.thread_bytes, a.requests, a.sectors, a.bytes_asked)
