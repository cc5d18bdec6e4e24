"""What section 7 runs: a kernel for weights of 4 bits, launched, and counted beside the engine's."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ptx_emulator import KernelReport
from twophase_features.quantization.rounding import quantize
from twophase_features.quantization.schemes import SCHEMES
from twophase_kernels._triton import cdiv
from twophase_labs.compression.changed_model import weight_of

CODES_PER_WORD = 8
MOST_ROWS = 16  # the fewest that a matrix instruction takes, and so the least tile

GroupedCodes = tuple[Int[Tensor, "O I"], Float[Tensor, "O G"], Float[Tensor, "O G"]]


def grouped_codes(name: str, scheme: str = "int4_g64") -> GroupedCodes:
    """Codes 0 to 15, scales and minima of one of SmolLM2's weights, as the engine rounds it."""
    weight = quantize(weight_of(name), SCHEMES[scheme])
    assert weight.minima is not None
    return weight.codes, weight.scales, weight.minima


def pack_words(codes: Int[Tensor, "O I"]) -> Int[Tensor, "O words"]:
    """Eight neighbouring codes in an int32, the first in its lowest four bits; I is a multiple of 8."""
    eights = codes.long().unflatten(1, (-1, CODES_PER_WORD))
    words = (eights << (4 * torch.arange(CODES_PER_WORD))).sum(-1)
    return torch.where(words < 2**31, words, words - 2**32).to(torch.int32)


def launch_int4_linear(
    kernel: Any,
    x: Float[Tensor, "T I"],
    packed: Int[Tensor, "O words"],
    scales: Float[Tensor, "O G"],
    minima: Float[Tensor, "O G"],
    *,
    out: Tensor | None = None,
    block_o: int = 64,
) -> Float[Tensor, "T O"]:
    """The product of x with a weight of 4 bits: a program per tile of `block_o` outputs.

    Args:
        x: Contiguous, at most 16 rows; its groups are a power of two wide, 16 at least.
        packed: What `pack_words` makes of codes.
        scales, minima: Contiguous.
        out: [T, O] of x's dtype to write to; allocated by default.
        block_o: A power of two from 16.
    """
    (num_tokens, num_inputs), num_outputs = x.shape, packed.shape[0]
    out = torch.empty(num_tokens, num_outputs, dtype=x.dtype, device=x.device) if out is None else out
    kernel[(cdiv(num_outputs, block_o),)](
        x, packed, scales, minima, out, num_tokens, num_inputs, num_outputs,
        GROUP=num_inputs // scales.shape[1], BLOCK_T=MOST_ROWS, BLOCK_O=block_o,
    )  # fmt: skip
    return out


def show_traffic(reports: dict[str, KernelReport], num_weights: int) -> None:
    """Prints a column for each kernel: the bytes its loads ask for, those that they move, and its instructions."""
    rows: dict[str, list[str]] = {}
    for report in reports.values():
        loads = [access for access in report.global_accesses if not access.is_store]
        column = {
            "bytes that loads ask for, per weight": f"{sum(each.bytes_asked for each in loads) / num_weights:.2f}",
            "bytes moved (whole sectors), per weight": f"{sum(each.bytes_moved for each in loads) / num_weights:.2f}",
            "instructions of warps, per 1,000 weights": f"{1000 * sum(report.executed.values()) / num_weights:.0f}",
        }
        for what, value in column.items():
            rows.setdefault(what, []).append(value)
    width = max(len(text) for text in (*reports, *(value for values in rows.values() for value in values))) + 2
    print(" " * 42 + "".join(f"{name:>{width}}" for name in reports))
    for what, values in rows.items():
        print(f"{what:42}" + "".join(f"{value:>{width}}" for value in values))
