"""Answers that prove the check of exercise 6.3."""

from twophase_labs.machine.bank import right, wrong

NUMBERS, ORDER, ANY = "reads scale and minimum", "puts the codes in order", "reads any block, in float32"

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
}
