"""Instructions that compute on registers: integers, floats, packed halves, comparisons, conversions, bit fields.

`OPERATIONS` has a function for each, from the instruction and its operands' numbers to the result's numbers, and the
types of the result and of the operands. Semantics: PTX ISA, chapter 9.7. Floats are computed in double precision and
rounded once, so that approximations (.approx, .full) come out better than a GPU's.
"""

import functools
from collections.abc import Callable

import numpy as np

from ptx_emulator.errors import NotCoveredError
from ptx_emulator.numbers import PACKED, SIGNED, UNSIGNED, bits_of, flush
from ptx_emulator.ptx import Instruction
from ptx_emulator.state import Execute, State, reader, writer

Function = Callable[..., np.ndarray]


def elementwise(function: Function, types: str, instruction: Instruction) -> Execute:
    """d = function(instruction, a, b, ...).

    `types` are the result's and the operands': PTX's own, or T: the instruction's last type, W: with .wide the type
    twice as wide, B: bits as wide, D: the last type but one. Operands that may be left out come last.
    """
    _refuse_unknown_modifiers(instruction)
    target, *sources = instruction.operands
    result, *kinds = (_type_of(letter, instruction) for letter in types.split())
    if len(sources) > len(kinds):
        raise NotCoveredError(f"{len(sources)} operands")
    fetch = [reader(source, kind) for source, kind in zip(sources, kinds, strict=False)]
    write, flushed = writer(target, result), "f32" if "ftz" in instruction.modifiers else ""

    def execute(state: State) -> None:
        numbers = [flush(f(state)) if kind == flushed else f(state) for f, kind in zip(fetch, kinds, strict=False)]
        answer = function(instruction, *numbers)
        write(state, flush(answer.astype(np.float32, copy=False)) if result == flushed else answer)

    return execute


def _type_of(letter: str, instruction: Instruction) -> str:
    kind = instruction.modifiers[-1]
    if letter == "W" and "wide" in instruction.modifiers:
        return kind[0] + str(2 * bits_of(kind))
    if letter == "B":
        return f"b{bits_of(kind)}"
    return instruction.modifiers[-2] if letter == "D" else kind if letter in "TW" else letter


def plain(function: Function) -> Function:
    """The function of an instruction without variants."""
    return lambda how, *numbers: function(*numbers)


def multiply(how: Instruction, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    kind = how.modifiers[-1]
    if "hi" in how.modifiers:
        if bits_of(kind) == 64:
            raise NotCoveredError("mul.hi of 64 bits")
        wide = kind[0] + "64"
        return (_as(a, wide) * _as(b, wide)) >> _as(bits_of(kind), wide)
    wide = _type_of("W", how)
    return _as(a, wide) * _as(b, wide) if "wide" in how.modifiers else a * b


def multiply_add(how: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """mad of integers."""
    if "hi" in how.modifiers:
        raise NotCoveredError("mad.hi")
    return multiply(how, a, b) + c


def fused_multiply_add(how: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """fma: one rounding. (A product of two fp32 numbers is exact in double; the sum is rounded twice, rarely felt.)"""
    return a.astype(np.float64) * b + c


def divide(how: Instruction, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if how.modifiers[-1][0] == "f":
        return a / b
    b = np.where(b == 0, b.dtype.type(1), b)  # undefined on a GPU
    floor = a // b
    return floor + ((floor * b != a) & ((a < 0) != (b < 0))).astype(a.dtype)


def remainder(how: Instruction, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.fmod(a, np.where(b == 0, b.dtype.type(1), b))


def negate(how: Instruction, a: np.ndarray) -> np.ndarray:
    return -a if a.dtype.kind != "u" else (~a + a.dtype.type(1))


def extreme(ordinary: Function, keeps_nan: Function) -> Function:
    """min and max, of two or three numbers; a NaN loses against a number unless .NaN is said."""
    return lambda how, *numbers: functools.reduce(keeps_nan if "NaN" in how.modifiers else ordinary, numbers)


COMPARISONS: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
COMBINE: dict[str, Function] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def set_predicate(how: Instruction, x: np.ndarray, y: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """setp: a comparison, perhaps combined with another predicate."""
    result = _compare(how.modifiers[0], x, y)
    return result if other is None else COMBINE[how.modifiers[1]](result, other)


def _compare(comparison: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """With a NaN only unordered ones (equ, ...) hold."""
    if x.dtype.kind != "f":
        return COMPARISONS[comparison](x, y)
    unordered = np.isnan(x) | np.isnan(y)
    if comparison in ("num", "nan"):
        return unordered if comparison == "nan" else ~unordered
    if comparison not in COMPARISONS and comparison.endswith("u"):
        return COMPARISONS[comparison[:-1]](x, y) | unordered
    return COMPARISONS[comparison](x, y) & ~unordered


def shift_left(how: Instruction, a: np.ndarray, by: np.ndarray) -> np.ndarray:
    bits = bits_of(how.modifiers[-1])
    return np.where(by >= bits, a.dtype.type(0), a << np.minimum(by, bits - 1).astype(a.dtype))


def shift_right(how: Instruction, a: np.ndarray, by: np.ndarray) -> np.ndarray:
    kind, bits = how.modifiers[-1], bits_of(how.modifiers[-1])
    shifted = a >> np.minimum(by, bits - 1).astype(a.dtype)
    return shifted if kind[0] == "s" else np.where(by >= bits, a.dtype.type(0), shifted)


def funnel_shift(how: Instruction, low: np.ndarray, high: np.ndarray, by: np.ndarray) -> np.ndarray:
    """shf: a 64-bit value shifted, one half of it kept."""
    by = (np.minimum(by, 32) if "clamp" in how.modifiers else by & 31).astype(np.uint64)
    both = high.astype(np.uint64) << np.uint64(32) | low
    return ((both << by) >> np.uint64(32) if "l" in how.modifiers else both >> by).astype(np.uint32)


def extract_bits(how: Instruction, a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """bfe. In 64 bits, extended by a's sign or zeros: up to the top, then down again."""
    kind, bits = how.modifiers[-1], bits_of(how.modifiers[-1])
    wide = kind[0] + "64"
    start, length = _as(np.minimum(start & 255, 63), wide), _as(np.minimum(length & 255, bits), wide)
    unused = _as(64, wide) - length
    field = (_as(a, wide) >> start << unused) >> np.minimum(unused, _as(63, wide))  # 0 after a shift by 64
    return field.astype(UNSIGNED[bits])


def insert_bits(how: Instruction, a: np.ndarray, b: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """bfi.b32"""
    if bits_of(how.modifiers[-1]) != 32:
        raise NotCoveredError("bfi of 64 bits")
    a, b, start, length = (_as(x, "u64") for x in (a, b, start & 255, length & 255))
    mask = ((np.uint64(1) << length) - np.uint64(1)) << start
    return ((b & ~mask) | ((a << start) & mask)).astype(np.uint32)


def permute_bytes(how: Instruction, a: np.ndarray, b: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """prmt.b32: four bytes chosen out of eight; with 8 added to a choice, the sign of that byte."""
    if how.modifiers != ("b32",):
        raise NotCoveredError("prmt with a mode")
    both = _as(b, "u64") << np.uint64(32) | _as(a, "u64")
    out = np.zeros(np.broadcast(both, choices).shape, np.uint64)
    for i in range(4):
        choice = _as(choices, "u64") >> np.uint64(4 * i) & np.uint64(15)
        byte = both >> (choice & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        byte = np.where(choice & np.uint64(8), np.where(byte & np.uint64(128), 255, 0).astype(np.uint64), byte)
        out |= byte << np.uint64(8 * i)
    return out.astype(np.uint32)


def logic_table(how: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    """lop3.b32: any function of three bits, given by its table."""
    if table.ndim:
        raise NotCoveredError("lop3 with a table in a register")
    out = np.zeros_like(a | b | c)
    for i in range(8):
        if int(table) >> i & 1:
            out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return out


def special_function(function: Function) -> Function:
    """ex2, lg2, rsqrt, ...: in double precision, then rounded."""

    def compute(how: Instruction, a: np.ndarray) -> np.ndarray:
        if how.modifiers[-1] != "f32":
            raise NotCoveredError(f"{how.name}.{how.modifiers[-1]}")
        return function(a.astype(np.float64)).astype(np.float32)

    return compute


ROUND_TO_INTEGER: dict[str, Function] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def convert(how: Instruction, a: np.ndarray, *lower: np.ndarray) -> np.ndarray:
    """cvt. Floats go to integers with the rounding that is named, clipped to their range; NaN becomes 0.

    A pair (f16x2 and so on) comes from two fp32 registers, the upper half first, or from another pair.
    """
    *modes, to, source = how.modifiers
    if "sat" in modes and to != "f32":
        raise NotCoveredError("cvt.sat to another type than f32")
    if to in PACKED and source == "f32":
        return np.stack(np.broadcast_arrays(*lower, a), -1)
    if a.dtype.kind != "f":
        if to[0] == "f" or to == "bf16":
            return a.astype(np.float32 if to == "f32" else np.float64)  # fp32 holds no 64 bits: one rounding
        return _as(a, to)
    rounding = next((mode for mode in modes if mode in ROUND_TO_INTEGER), None)
    if to[0] in "us":
        rounded = ROUND_TO_INTEGER[rounding](a.astype(np.float64))
        limits = np.iinfo(_dtype(to))
        too_large = rounded >= float(limits.max)  # which fp64 may have rounded up
        inside = np.where(too_large | np.isnan(rounded), 0, np.maximum(rounded, limits.min)).astype(limits.dtype)
        return np.where(too_large, limits.max, inside).astype(limits.dtype)
    if rounding:
        a = ROUND_TO_INTEGER[rounding](a)
    return np.clip(a, 0, 1) if "sat" in modes else a


def _as(a: np.ndarray | int, kind: str) -> np.ndarray:
    return np.asarray(a).astype(_dtype(kind))


def _dtype(kind: str) -> np.dtype:
    return np.dtype((SIGNED if kind[0] == "s" else UNSIGNED)[bits_of(kind)])


OPERATIONS: dict[str, tuple[Function, str]] = {
    "add": (plain(np.add), "T T T"),
    "sub": (plain(np.subtract), "T T T"),
    "mul": (multiply, "W T T"),
    "mad": (multiply_add, "W T T W"),
    "fma": (fused_multiply_add, "T T T T"),
    "div": (divide, "T T T"),
    "rem": (remainder, "T T T"),
    "neg": (negate, "T T"),
    "abs": (plain(np.abs), "T T"),
    "min": (extreme(np.fmin, np.minimum), "T T T T"),
    "max": (extreme(np.fmax, np.maximum), "T T T T"),
    "and": (plain(np.bitwise_and), "T T T"),
    "or": (plain(np.bitwise_or), "T T T"),
    "xor": (plain(np.bitwise_xor), "T T T"),
    "not": (plain(np.invert), "T T"),
    "shl": (shift_left, "T T u32"),
    "shr": (shift_right, "T T u32"),
    "shf": (funnel_shift, "T T T T"),
    "bfe": (extract_bits, "T T u32 u32"),
    "bfi": (insert_bits, "b32 b32 b32 u32 u32"),
    "prmt": (permute_bytes, "T T T T"),
    "lop3": (logic_table, "T T T T T"),
    "popc": (plain(np.bitwise_count), "u32 T"),
    "setp": (set_predicate, "pred T T pred"),
    "selp": (plain(lambda a, b, p: np.where(p, a, b)), "B B B pred"),
    "cvt": (convert, "D T T"),
    "ex2": (special_function(np.exp2), "T T"),
    "lg2": (special_function(np.log2), "T T"),
    "rcp": (special_function(np.reciprocal), "T T"),
    "sqrt": (special_function(np.sqrt), "T T"),
    "rsqrt": (special_function(lambda a: 1 / np.sqrt(a)), "T T"),
    "sin": (special_function(np.sin), "T T"),
    "cos": (special_function(np.cos), "T T"),
    "tanh": (special_function(np.tanh), "T T"),
}
BUILDERS = {name: functools.partial(elementwise, *operation) for name, operation in OPERATIONS.items()}

# Modifiers (after a dot) that some function understands; it raises for one that it does not know.
UNDERSTOOD = {
    "rn", "ftz", "approx", "full", "NaN", "lo", "hi", "wide", "l", "r", "clamp", "wrap", "sat", "satfinite",
    "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
}.union(ROUND_TO_INTEGER, COMPARISONS, COMBINE)  # fmt: skip


def _refuse_unknown_modifiers(instruction: Instruction) -> None:
    """A rounding or a mode that were passed over would give slightly wrong numbers in silence."""
    for modifier in instruction.modifiers:
        if modifier not in UNDERSTOOD:
            bits_of(modifier)  # a type, or NotImplementedError
    if instruction.name != "cvt" and "sat" in instruction.modifiers:
        raise NotCoveredError(f"saturation in {instruction.name}")
