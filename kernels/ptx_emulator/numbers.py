"""PTX's types on numpy arrays of their bits: a register holds an unsigned integer of its width, or a bool."""

import functools
import re

import numpy as np
import torch

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS = {16: np.float16, 32: np.float32, 64: np.float64}
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}
SMALLEST_NORMAL = np.float32(2.0**-126)


@functools.cache
def bits_of(kind: str) -> int:
    """Width of 'u32', 'bf16', 'f16x2', 'pred' and so on, in bits."""
    if kind == "pred":
        return 1
    if kind in PACKED:
        return 2 * bits_of(PACKED[kind])
    if kind in ("e4m3", "e5m2"):
        return 8
    match = re.fullmatch(r"(?:bf|[busf])(8|16|32|64|128)", kind)
    if match is None:
        raise NotImplementedError(f"the type .{kind}")
    return int(match[1])


def decode(bits: np.ndarray, kind: str) -> np.ndarray:
    """Bits -> numbers; bf16 as float32, because numpy lacks bf16."""
    if kind == "pred" or (kind[0] == "b" and kind != "bf16"):
        return bits
    width = bits_of(kind)
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind[0] == "u":
        return bits
    return bits.view(SIGNED[width] if kind[0] == "s" else FLOATS[width])


def encode(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Numbers -> bits of `kind`; floats are rounded to nearest even, integers wrap around."""
    if kind == "pred":
        return numbers if numbers.dtype == bool else numbers != 0
    width = bits_of(kind)
    if kind == "bf16":
        return _bf16_bits(numbers.astype(np.float32))
    if kind[0] == "f":
        numbers = numbers.astype(FLOATS[width], copy=False)
    elif numbers.dtype.kind == "f":
        raise TypeError(f"a float cannot be a .{kind}")
    elif numbers.dtype.itemsize * 8 != width:
        numbers = numbers.astype(UNSIGNED[width])
    return _contiguous(numbers).view(UNSIGNED[width])


def _contiguous(numbers: np.ndarray) -> np.ndarray:
    return numbers if numbers.ndim == 0 else np.ascontiguousarray(numbers)  # which would make it [1]


def _bf16_bits(x: np.ndarray) -> np.ndarray:
    bits = _contiguous(x).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)


def unpack(bits: np.ndarray, kind: str) -> np.ndarray:
    """Two packed numbers as float32 [..., 2], the lower half first."""
    half = PACKED[kind]
    halves = np.ascontiguousarray(bits).view(UNSIGNED[bits_of(half)]).reshape(*bits.shape, 2)
    if half in ("e4m3", "e5m2"):
        return float8_values(half)[halves]
    return decode(halves, half).astype(np.float32, copy=False)


def pack(numbers: np.ndarray, kind: str) -> np.ndarray:
    """float32 [..., 2] -> two packed numbers, the first in the lower half."""
    half = PACKED[kind]
    halves = _float8_bits(numbers, half) if half in ("e4m3", "e5m2") else encode(numbers, half)
    return np.ascontiguousarray(halves).view(UNSIGNED[bits_of(kind)])[..., 0]


@functools.cache
def float8_values(kind: str) -> np.ndarray:
    """The values of the 256 codes, fp32."""
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind]
    return torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()


def _float8_bits(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Rounded to nearest even; larger numbers become the largest finite number (.satfinite)."""
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind]
    largest = torch.finfo(dtype).max
    x = torch.from_numpy(np.ascontiguousarray(numbers, np.float32)).clamp(-largest, largest)
    codes = x.to(dtype).view(torch.uint8).numpy()
    return np.where(np.isnan(numbers), np.uint8(0x7F), codes)


def flush(x: np.ndarray) -> np.ndarray:
    """fp32 with subnormals as zeros of their sign (.ftz)."""
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)
