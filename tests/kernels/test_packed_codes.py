"""Packing: where each code lies, by the documented formula; and back again."""

import pytest
import torch

from tests.kernels.linear_cases import make_codes
from twophase_kernels import packed_codes as module

RANGES = {"unsigned": (4, 0, 15), "signed": (4, -8, 7), "int8": (8, -128, 127)}
SHAPES = [(1, 1), (3, 32), (5, 128), (2, 129), (33, 576)]


def check_pack(module, kind, shape):
    """Every single code is where the module's docstring says, and nothing else is there; and back again."""
    bits, lowest, highest = RANGES[kind]
    codes = make_codes(*shape, lowest, highest)
    packed = module.pack_codes(codes, bits)
    run_length = {4: 128, 8: 64}[bits]
    assert packed.shape == (-(-shape[1] // run_length), shape[0], 32)
    assert packed.dtype == torch.int16
    assert packed.is_contiguous()
    words = packed.int() & 0xFFFF
    rebuilt = torch.zeros_like(words)
    for column in range(shape[1]):
        run, within = divmod(column, run_length)
        part, word = divmod(within, 32)
        found = words[run, :, word] >> (bits * part) & (2**bits - 1)
        assert torch.equal(found.long(), codes[:, column] & (2**bits - 1)), f"column {column}"
        rebuilt[run, :, word] |= found << (bits * part)
    assert torch.equal(rebuilt, words), "columns that are not there are not zero"
    back = module.unpack_codes(packed, bits, shape[1], is_signed=lowest < 0)
    assert back.dtype == torch.int8
    assert torch.equal(back.long(), codes)


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pack(kind, shape):
    check_pack(module, kind, shape)


@pytest.mark.parametrize(
    ("bits", "codes", "message"),
    [
        (4, torch.tensor([[-1, 8]]), r"-8 to 7 \(without minima\) or from 0 to 15 .*got -1 to 8"),
        (8, torch.tensor([[128]]), "from -128 to 127"),
        (4, torch.zeros(2, 2), r"integers \[O, I\]"),
        (8, torch.zeros(2, 0, dtype=torch.int8), "I > 0"),
    ],
    ids=["both signs", "9 bits", "floats", "no columns"],
)
def test_refuses_codes(bits, codes, message):
    with pytest.raises(ValueError, match=message):
        module.pack_codes(codes, bits)


def test_refuses_packed():
    packed = torch.zeros(4, 4, 32, dtype=torch.int16)
    with pytest.raises(ValueError, match=r"packed must be contiguous int16 \[runs=5, O, 32\]"):
        module.unpack_codes(packed, 4, 576)
