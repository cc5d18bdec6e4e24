"""Answers that prove the check of exercise 3.13."""

from tests.labs.decode.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

ONE_ROW_AT_A_TIME = """
def quantise(x, q_max=127):
    data = torch.zeros(x.shape, dtype=torch.int8)
    scale = torch.ones(x.shape[:2])
    for t in range(x.shape[0]):
        for h in range(x.shape[1]):
            row = x[t, h].float()
            if row.any():
                scale[t, h] = max(row.max(), -row.min()) / q_max
                data[t, h] = torch.round(row / scale[t, h]).to(torch.int8)
    return data, scale


def dequantise(data, scale):
    return torch.einsum("thd,th->thd", data.float(), scale)
"""
MULTIPLIES = """
def quantise(x, q_max=127):
    x = x.to(torch.float32)
    largest = x.abs().max(dim=-1).values
    largest = torch.where(largest == 0, torch.ones_like(largest), largest)
    data = torch.clamp(torch.round(x * (q_max / largest)[..., None]), -q_max, q_max)
    return data.to(torch.int8), largest / q_max


def dequantise(data, scale):
    return scale.unsqueeze(-1) * data
"""
NO_ROUND = """
def quantise(x, q_max=127):
    scale = x.float().abs().amax(-1).clamp(min=1e-30) / q_max
    return (x / scale[..., None]).to(torch.int8), scale


def dequantise(data, scale):
    return data.float() * scale[..., None]
"""
IN_PLACE = """
def quantise(x, q_max=127):
    scale = x.float().abs().amax(-1).clamp(min=1e-30) / q_max
    return x.div_(scale[..., None]).round().to(torch.int8), scale


def dequantise(data, scale):
    return data.float() * scale[..., None]
"""
HALF = """
def quantise(x, q_max=127):
    scale = x.abs().amax(-1).clamp(min=1e-7) / q_max
    return (x / scale[..., None]).round().to(torch.int8), scale


def dequantise(data, scale):
    return data * scale[..., None]
"""

BANKS = {
    "3.13": Bank(
        wrong=(
            Wrong(
                "one scale for everything",
                {1: "x.float().abs().max().expand(x.shape[:-1])"},
                rejected_by="lets a loud token harm no other",
            ),
            Wrong(
                "a scale per token, the same for all heads",
                {1: "x.float().abs().amax((1, 2))[:, None].expand(x.shape[:-1])"},
                rejected_by="lets a loud token harm no other",
            ),
            Wrong(
                "a scale per head, the same for all tokens",
                {1: "x.float().abs().amax((0, 2)).expand(x.shape[:-1])"},
                rejected_by="lets a loud token harm no other",
            ),
            Wrong(
                "a scale per element",
                {1: "x.float().abs()", 3: "x.sign() * q_max"},
                rejected_by="keeps a byte per number and a scale per token and head",
            ),
            Wrong("forgets the sign", {1: "x.float().amax(-1)"}, rejected_by="is off by half a step at most"),
            Wrong("a row of zeros divides by zero", {2: "largest / q_max"}, rejected_by="keeps scales above zero"),
            Wrong(
                "128 steps on the positive side",
                {2: "largest.clamp(min=1e-30) / (q_max + 1)"},
                rejected_by="is off by half a step at most",
            ),
            Wrong("always 127 steps", {2: "largest.clamp(min=1e-30) / 127"}, rejected_by="uses the whole range"),
            Wrong("cuts off", NO_ROUND, rejected_by="is off by half a step at most"),
            Wrong("rounds down", {3: "(x / scale[..., None]).floor()"}, rejected_by="is off by half a step at most"),
            Wrong(
                "the scale twice", {4: "data.float() / scale[..., None]"}, rejected_by="is off by half a step at most"
            ),
            Wrong("scales in half precision", HALF, rejected_by="works for rows of any size"),
            Wrong("divides in place", IN_PLACE, rejected_by="leaves its inputs alone"),
        ),
        right=(
            Right("row by row", ONE_ROW_AT_A_TIME),
            Right("multiplies by the reciprocal", MULTIPLIES),
            Right("another largest", {1: "torch.maximum(x.float().amax(-1), -x.float().amin(-1))"}),
        ),
    ),
}
BANKS = opened_all(BANKS)
