"""6.3: codes of 4 bits as files hold them."""

import struct
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import exercise

Q4_1 = exercise("6.3", "Read a file's blocks", "read_q4_1", points=3, minutes=14, lines=5, difficulty=2)
Q4_1.objective = "turn the bytes of a GGUF file into weights"
Q4_1.hints = (
    "Two bytes are one float16. `tensor.view(torch.float16)` reads the same bytes as numbers of that type; the last "
    "axis gets half as long.",
    "The low half of a byte is `byte & 15`, the high half `byte >> 4`. Weights 0 to 15 are the low halves of the 16 "
    "bytes, in their order.",
    "A code times the scale, plus the minimum, in float32: `.float()` first, for products in float16 round.",
)


def block_of(scale: float, minimum: float, data: bytes) -> list[int]:
    return list(struct.pack("<ee", scale, minimum) + data)


def weights_of(block: list[int]) -> list[float]:
    """Byte by byte."""
    scale, minimum = struct.unpack("<ee", bytes(block[:4]))
    low, high = [byte % 16 for byte in block[4:]], [byte // 16 for byte in block[4:]]
    return [scale * code + minimum for code in (*low, *high)]


def read(answer: Any, blocks: list[list[int]]) -> Tensor:
    given = torch.tensor(blocks, dtype=torch.uint8).view(len(blocks), 20)
    with unchanged(blocks=given):
        got = answer.read_q4_1(given)
    if not isinstance(got, torch.Tensor) or list(got.shape) != [len(blocks), 32]:
        shape = list(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
        reject(f"read_q4_1 of {[len(blocks), 20]} returned {shape}, expected {[len(blocks), 32]}")
    return got


@Q4_1.check("reads scale and minimum", num_blocks=(1, 5))
def reads_scale_and_minimum(answer: Any, draw: Draw, num_blocks: int) -> None:
    """Bytes 0 and 1 are the scale, bytes 2 and 3 the minimum, each a float16."""
    # All codes alike: 0 shows the minimum, 15 the scale as well.
    for code, what in (
        (0, "all codes 0: every weight is the minimum;"),
        (15, "all codes 15: 15 scales and the minimum;"),
    ):
        numbers = [(draw.random.uniform(0.01, 0.4), draw.random.uniform(-3, -0.1)) for _ in range(num_blocks)]
        blocks = [block_of(*pair, bytes([17 * code] * 16)) for pair in numbers]
        expected = torch.tensor([weights_of(block) for block in blocks])
        compare(read(answer, blocks), expected, what=f"{what} the result", axes=("block", "weight"), atol=1e-2)


@Q4_1.check("puts the codes in order", at=(0, 0, 3, 15), is_high=(False, True, False, True))
def puts_codes_in_order(answer: Any, draw: Draw, at: int, is_high: bool) -> None:
    """All low halves come first (weights 0 to 15), then all high halves (weights 16 to 31)."""
    # One code of 32 is not 0.
    data = bytearray(16)
    data[at] = 5 * (16 if is_high else 1)
    got = read(answer, [block_of(1.0, 0.0, bytes(data))])[0]
    expected = [0.0] * 32
    expected[at + 16 * is_high] = 5.0
    half = "high" if is_high else "low"
    what = f"with code 5 in the {half} half of byte {4 + at}, scale 1 and minimum 0, the result"
    compare(got, torch.tensor(expected), what=what, axes=("weight",))


@Q4_1.check("reads any block, in float32", num_blocks=(1, 7, 300))
def reads_any_block(answer: Any, draw: Draw, num_blocks: int) -> None:
    """Each block has a scale and a minimum of its own. Turn them into float32 before you multiply."""
    blocks = []
    for _ in range(num_blocks):
        data = bytes(draw.integers(0, 256, 16).tolist())
        blocks.append(block_of(draw.random.uniform(0.001, 0.3), draw.random.uniform(-2, 2), data))
    expected = torch.tensor([weights_of(block) for block in blocks]).view(num_blocks, 32)
    # What float32 rounds, and nothing more: float16 would be wrong by 5e-4.
    compare(read(answer, blocks), expected, axes=("block", "weight"), rtol=1e-6, atol=1e-6, same_dtype=True)
