"""Answers that prove the checks of exercises 6.3 and 6.4."""

from twophase_labs.machine.bank import right, wrong

NUMBERS, ORDER, ANY = "reads scale and minimum", "puts the codes in order", "reads any block, in float32"
PLACE, PACKS, UNPACKS = "puts each code in its place", "packs rows of codes", "unpacks any word"

WITH_NUMPY = """
import numpy as np

def read_q4_1(blocks):
    fields = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("codes", "u1", 16)])
    found = np.ascontiguousarray(blocks.numpy()).view(fields)[:, 0]
    codes = np.concatenate([found["codes"] % 16, found["codes"] // 16], axis=1).astype(np.float32)
    return torch.from_numpy(codes * found["scale"].astype(np.float32)[:, None] + found["minimum"].astype(np.float32)[:, None])
"""
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
BY_VIEW = """
def pack(codes):
    pairs = codes.unflatten(1, (-1, 2))
    return (pairs[..., 0] | pairs[..., 1] << 4).contiguous().view(torch.int32)

def unpack(words):
    data = words.contiguous().view(torch.uint8)
    return torch.stack((data & 15, data >> 4), dim=-1).flatten(1)
"""

# fmt: off
BANKS = {
    "6.3": (
        wrong("low halves not masked", {2: "blocks[:, 4:]"}, by=NUMBERS),
        wrong("high halves not shifted", {3: "blocks[:, 4:] & 240"}, by=NUMBERS),
        wrong("bytes as numbers", {1: "blocks[:, :2].float()"}, by=NUMBERS),
        wrong("high halves first", "[low, high", "[high, low", by=ORDER),
        wrong("low and high in turn", {4: "torch.stack([low, high], dim=2).flatten(1)"}, by=ORDER),
        wrong("halves mixed up", {2: "blocks[:, 4:] >> 4", 3: "blocks[:, 4:] & 15"}, by=ORDER),
        wrong("rounded to float16 at the end", {5: "(codes * scales + minima).half().float()"}, by=ANY),
        wrong("computed in float16", {5: "(codes * scales.half() + minima.half()).float()"}, by=ANY),
        right("NumPy's structured arrays", WITH_NUMPY),
        right("byte by byte", WITH_STRUCT),
    ),
    "6.4": (
        wrong("int64 words", {1: "(eights.long() << SHIFTS).sum(-1)"}, by=PLACE),
        wrong("shifted as uint8", ".int() << SHIFTS", " << SHIFTS.to(torch.uint8)", by=PLACE),
        wrong("the order of AWQ", "eights.int", "eights[..., [0, 2, 4, 6, 1, 3, 5, 7]].int", by=PLACE),
        wrong("codes of the sign left out", "eights.int", "(eights & 7).int", by=PACKS),
        wrong("joined in float32", {1: "(eights.float() * 2.0 ** SHIFTS).sum(-1).long().to(torch.int32)"}, by=PACKS),
        wrong("no mask", {2: "words[..., None] >> SHIFTS"}, by=UNPACKS),
        wrong("three bits", {2: "words[..., None] >> SHIFTS & 7"}, by=UNPACKS),
        wrong("of the magnitude", {2: "words.abs()[..., None] >> SHIFTS & 15"}, by=UNPACKS),
        right("through int64",
              {1: "(eights.long() << SHIFTS.long()).sum(-1).to(torch.int32)", 2: "(words.long() & 0xFFFFFFFF)[..., None] >> SHIFTS.long() & 15"}),
        right("pairs as bytes, bytes as words", BY_VIEW),
    ),
}
