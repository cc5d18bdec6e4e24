"""GGUF's blocks, read bit by bit into codes, scales and minima (github.com/ggml-org/llama.cpp, ggml-quants.c).

A block holds neighbouring weights of a row: the legacy types 32 of them with one scale, the K types 256 in groups of 32
or 16, whose scales have few bits themselves. Numbers are little-endian; d, dmin and m are float16.

    Q4_0  d, 32 codes of 4 bits                     w = d (code - 8)
    Q4_1  d, m, 32 codes of 4 bits                  w = d code + m
    Q8_0  d, 32 codes of 8 bits                     w = d code
    Q4_K  d, dmin, 8 scales and 8 minima of 6 bits, 256 codes of 4 bits       w = (d scale) code - dmin minimum
    Q6_K  256 codes of 4 bits and their upper 2 bits, 16 scales of 8 bits, d  w = (d scale) (code - 32)
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from twophase_features.quantization.weight import QuantizedWeight


def _halves(blocks: UInt8[Tensor, "N bytes"]) -> Float[Tensor, "N n"]:
    return blocks.contiguous().view(torch.float16).float()


def _nibbles(data: UInt8[Tensor, "N n"], run: int) -> UInt8[Tensor, "N two_n"]:
    """4-bit codes: of each `run` bytes first all low halves, then all high ones."""
    runs = data.unflatten(1, (-1, run))
    return torch.stack((runs & 15, runs >> 4), dim=2).flatten(1)


def _q4_0(blocks: UInt8[Tensor, "N bytes"]) -> QuantizedWeight:
    return QuantizedWeight(_nibbles(blocks[:, 2:], 16).to(torch.int8) - 8, _halves(blocks[:, :2]), None, 4)


def _q4_1(blocks: UInt8[Tensor, "N bytes"]) -> QuantizedWeight:
    scales_and_minima = _halves(blocks[:, :4])
    return QuantizedWeight(
        _nibbles(blocks[:, 4:], 16).to(torch.int8), scales_and_minima[:, :1], scales_and_minima[:, 1:], 4
    )


def _q8_0(blocks: UInt8[Tensor, "N bytes"]) -> QuantizedWeight:
    return QuantizedWeight(blocks[:, 2:].contiguous().view(torch.int8), _halves(blocks[:, :2]), None, 8)


def _q4_k(blocks: UInt8[Tensor, "N bytes"]) -> QuantizedWeight:
    d, dmin = _halves(blocks[:, :4]).split(1, dim=1)
    packed = blocks[:, 4:16]
    low, high, rest = packed.split(4, dim=1)
    # The first four scales and minima have their 6 bits in one byte, the last four in two.
    scales = torch.cat((low & 63, rest & 15 | low >> 6 << 4), dim=1)
    minima = torch.cat((high & 63, rest >> 4 | high >> 6 << 4), dim=1)
    return QuantizedWeight(_nibbles(blocks[:, 16:], 32).to(torch.int8), d * scales.float(), -(dmin * minima.float()), 4)


def _q6_k(blocks: UInt8[Tensor, "N bytes"]) -> QuantizedWeight:
    low, high, scales, d = blocks.split((128, 64, 16, 2), dim=1)
    lower = _nibbles(low, 64)
    # The upper bits of 128 weights are in 32 bytes: 2 bits each for weights 32 apart.
    runs = high.unflatten(1, (-1, 32))
    upper = torch.stack([runs >> shift & 3 for shift in (0, 2, 4, 6)], dim=2).flatten(1)
    codes = (lower | upper << 4).to(torch.int8) - 32
    return QuantizedWeight(codes, _halves(d) * scales.contiguous().view(torch.int8).float(), None, 6)


class BlockType(NamedTuple):
    """A type of block: its bytes, and the function that decodes N blocks of S weights into a weight [N, S]."""

    num_bytes: int
    read: Callable[[Tensor], QuantizedWeight]


BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(18, _q4_0),
    "Q4_1": BlockType(20, _q4_1),
    "Q8_0": BlockType(34, _q8_0),
    "Q4_K": BlockType(144, _q4_k),
    "Q6_K": BlockType(210, _q6_k),
}


def read_blocks(rows: UInt8[Tensor, "O bytes"], kind: str) -> QuantizedWeight:
    """The weight whose rows are blocks of the type `kind`, a key of `BLOCK_TYPES`."""
    block = BLOCK_TYPES[kind]
    by_block = block.read(rows.reshape(-1, block.num_bytes))
    return by_block.changed(lambda values: values.reshape(len(rows), -1))
