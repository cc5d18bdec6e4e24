"""Answers that prove the checks of exercises 6.3 and 6.4."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

NUMBERS, ORDER, ANY = "reads scale and minimum", "puts the codes in order", "reads any block, in float32"
PLACE, PACKS, UNPACKS = "puts each code in its place", "packs rows of codes", "unpacks any word"

WITH_STRUCT = """
import struct


def read_q4_1(blocks):
    rows = []
    for block in blocks.tolist():
        scale, minimum = struct.unpack("<ee", bytes(block[:4]))
        codes = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
        rows.append([scale * code + minimum for code in codes])
    return torch.tensor(rows, dtype=torch.float32).view(len(rows), 32)
"""
WITH_NUMPY = """
import numpy as np


def read_q4_1(blocks):
    fields = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("codes", "u1", 16)])
    found = np.ascontiguousarray(blocks.numpy()).view(fields)[:, 0]
    codes = np.concatenate([found["codes"] % 16, found["codes"] // 16], axis=1).astype(np.float32)
    return torch.from_numpy(codes * found["scale"].astype(np.float32)[:, None] + found["minimum"].astype(np.float32)[:, None])
"""
PYTHON_INTS = """
def pack(codes):
    words = []
    for row in codes.tolist():
        packed = []
        for i in range(0, len(row), 8):
            data = bytes(row[i + j] | row[i + j + 1] << 4 for j in range(0, 8, 2))
            packed.append(int.from_bytes(data, "little", signed=True))
        words.append(packed)
    return torch.tensor(words, dtype=torch.int32)


def unpack(words):
    rows = []
    for row in words.tolist():
        data = b"".join(word.to_bytes(4, "little", signed=True) for word in row)
        rows.append([half for byte in data for half in (byte & 15, byte >> 4)])
    return torch.tensor(rows, dtype=torch.uint8)
"""
BY_VIEW = """
def pack(codes):
    pairs = codes.unflatten(1, (-1, 2))
    return (pairs[..., 0] | pairs[..., 1] << 4).contiguous().view(torch.int32)


def unpack(words):
    data = words.contiguous().view(torch.uint8)
    return torch.stack((data & 15, data >> 4), dim=-1).flatten(1)
"""
THROUGH_INT64 = {
    1: "(eights.long() << SHIFTS.long()).sum(-1).to(torch.int32)",
    2: "(words.long() & 0xFFFFFFFF)[..., None] >> SHIFTS.long() & 15",
}

BANKS = {
    "6.3": Bank(
        wrong=(
            Wrong("bytes as numbers", {1: "blocks[:, :2].float()"}, NUMBERS),
            Wrong(
                "minimum before scale", {1: "blocks[:, :4].contiguous().view(torch.float16).float().flip(1)"}, NUMBERS
            ),
            Wrong("bfloat16", {1: "blocks[:, :4].contiguous().view(torch.bfloat16).float()"}, NUMBERS),
            Wrong(
                "the first two and the last two bytes",
                {1: "blocks[:, [0, 1, 18, 19]].contiguous().view(torch.float16).float()"},
                NUMBERS,
            ),
            Wrong("high halves first", {4: "torch.cat([high, low], dim=1)"}, ORDER),
            Wrong("low and high in turn", {4: "torch.stack([low, high], dim=2).flatten(1)"}, ORDER),
            Wrong("halves mixed up", {2: "blocks[:, 4:] >> 4", 3: "blocks[:, 4:] & 15"}, ORDER),
            Wrong("high halves not shifted", {3: "blocks[:, 4:] & 240"}, NUMBERS),
            Wrong("low halves not masked", {2: "blocks[:, 4:]"}, NUMBERS),
            Wrong("codes about zero", {5: "(codes - 8.0) * scales + minima"}, NUMBERS),
            Wrong("minimum subtracted", {5: "codes * scales - minima"}, NUMBERS),
            Wrong("minimum in steps", {5: "(codes + minima) * scales"}, NUMBERS),
            Wrong("computed in float16", {5: "(codes * scales.half() + minima.half()).float()"}, ANY),
            Wrong("rounded to float16 at the end", {5: "(codes * scales + minima).half().float()"}, ANY),
            Wrong("the first block's scale", {5: "codes * scales[:1] + minima"}, NUMBERS),
        ),
        right=(
            Right("byte by byte", WITH_STRUCT),
            Right("NumPy's structured arrays", WITH_NUMPY),
            Right(
                "without a copy",
                {1: "blocks[:, :4].view(torch.float16).float()", 5: "torch.addcmul(minima, codes.float(), scales)"},
            ),
        ),
    ),
    "6.4": Bank(
        wrong=(
            Wrong(
                "the first code in the highest bits",
                {1: "(eights.int() << SHIFTS.flip(0)).sum(-1, dtype=torch.int32)"},
                PLACE,
            ),
            Wrong("shifted as uint8", {1: "(eights << SHIFTS.to(torch.uint8)).sum(-1, dtype=torch.int32)"}, PLACE),
            Wrong("int64 words", {1: "(eights.long() << SHIFTS).sum(-1)"}, PLACE),
            Wrong(
                "the order of AWQ",
                {1: "(eights[..., [0, 2, 4, 6, 1, 3, 5, 7]].int() << SHIFTS).sum(-1, dtype=torch.int32)"},
                PLACE,
            ),
            Wrong(
                "clamped to the largest int32",
                {1: "(eights.long() << SHIFTS).sum(-1).clamp(max=2**31 - 1).to(torch.int32)"},
                PACKS,
            ),
            Wrong("joined in float32", {1: "(eights.float() * 2.0 ** SHIFTS).sum(-1).long().to(torch.int32)"}, PACKS),
            Wrong(
                "codes of the sign left out", {1: "((eights & 7).int() << SHIFTS).sum(-1, dtype=torch.int32)"}, PACKS
            ),
            Wrong("no mask", {2: "words[..., None] >> SHIFTS"}, UNPACKS),
            Wrong("masked before the shift", {2: "(words[..., None] & (15 << SHIFTS)) >> SHIFTS"}, UNPACKS),
            Wrong("of the magnitude", {2: "words.abs()[..., None] >> SHIFTS & 15"}, UNPACKS),
            Wrong("three bits", {2: "words[..., None] >> SHIFTS & 7"}, UNPACKS),
            Wrong("the first code from the highest bits", {2: "words[..., None] >> SHIFTS.flip(0) & 15"}, UNPACKS),
        ),
        right=(
            Right("Python's own numbers", PYTHON_INTS),
            Right("pairs as bytes, bytes as words", BY_VIEW),
            Right("through int64", THROUGH_INT64),
        ),
    ),
}
