"""PTX's types on numpy arrays of their bits: a register holds an unsigned integer of its width, or a bool."""

import functools
import re

import numpy as np
import torch

UNSIGNED = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS = {16: np.float16, 32: np.float32, 64: np.float64}
TORCH = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}  # numpy lacks these
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
    """Bits -> numbers. Types that numpy lacks become float32, packed ones float32 [..., 2], the lower half first."""
    if kind in PACKED:
        half = PACKED[kind]
        halves = np.ascontiguousarray(bits).view(UNSIGNED[bits_of(half)]).reshape(*bits.shape, 2)
        return decode(halves, half).astype(np.float32, copy=False)
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind in TORCH:
        return float8_values(kind)[bits]
    if kind == "pred" or kind[0] in "bu":
        return bits
    return bits.view((SIGNED if kind[0] == "s" else FLOATS)[bits_of(kind)])


@functools.cache
def float8_values(kind: str) -> np.ndarray:
    """The values of the 256 codes, fp32."""
    return torch.arange(256, dtype=torch.uint8).view(TORCH[kind]).float().numpy()


def encode(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Numbers -> bits of `kind`, the reverse; floats are rounded to nearest even, integers wrap around."""
    if kind in PACKED:
        return np.ascontiguousarray(encode(numbers, PACKED[kind])).view(UNSIGNED[bits_of(kind)])[..., 0]
    if kind == "pred":
        return numbers if numbers.dtype == bool else numbers != 0
    if kind in TORCH:
        return _rounded(numbers, kind)
    width = bits_of(kind)
    if kind[0] == "f":
        numbers = numbers.astype(FLOATS[width], copy=False)
    elif numbers.dtype.kind == "f":
        raise TypeError(f"a float cannot be a .{kind}")
    elif numbers.dtype.itemsize * 8 != width:
        numbers = numbers.astype(UNSIGNED[width])
    contiguous = numbers if numbers.ndim == 0 else np.ascontiguousarray(numbers)  # which would make it [1]
    return contiguous.view(UNSIGNED[width])


def _rounded(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Bits of a type that numpy lacks. Larger numbers than fp8 has become its largest finite one (.satfinite)."""
    width, dtype = bits_of(kind), TORCH[kind]
    largest = torch.finfo(dtype).max if width == 8 else np.inf
    x = torch.from_numpy(np.array(numbers, np.float32)).clamp(-largest, largest)
    bits = x.to(dtype).view(torch.uint8 if width == 8 else torch.uint16).numpy()
    return np.where(np.isnan(numbers), UNSIGNED[width]((1 << width - 1) - 1), bits)


def widen(bits: np.ndarray, kind: str, held: int) -> np.ndarray:
    """Bits of `kind` -> bits of a register of `held` bits, filled up by the sign or zeros, or cut off."""
    width = bits_of(kind)
    if kind[0] == "s" and held > width:
        bits = bits.view(SIGNED[width]).astype(SIGNED[held]).view(UNSIGNED[held])
    return bits.astype(UNSIGNED[held], copy=False)


def flush(x: np.ndarray) -> np.ndarray:
    """fp32 with subnormals as zeros of their sign (.ftz)."""
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)
