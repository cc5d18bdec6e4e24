"""Instructions that compute on registers: integers, floats, packed halves, comparisons, conversions, bit fields.

Each builder takes an instruction and returns the function that executes it. Semantics: PTX ISA, chapter 9.7. Floats are
computed in double precision and rounded once, so that approximations (.approx, .full) come out better than a GPU's.
"""

import functools
from collections.abc import Callable

import numpy as np

from ptx_emulator.errors import NotCoveredError
from ptx_emulator.numbers import PACKED, SIGNED, UNSIGNED, bits_of, flush, pack, unpack
from ptx_emulator.ptx import Instruction, Literal, Register
from ptx_emulator.state import State, reader, writer

Execute = Callable[[State], None]
Function = Callable[..., np.ndarray]


def width_of(register, widths: dict[str, int]) -> int:
    return widths.get(register.name) or widths.get(register.name.rstrip("0123456789"), 32)


def elementwise(
    instruction: Instruction,
    widths: dict[str, int],
    function: Function,
    kinds: tuple[str, ...] = (),
    result: str = "",
) -> Execute:
    """d = function(a, b, ...); operands and result have the instruction's last type unless stated otherwise."""
    kind = instruction.modifiers[-1]
    target, *sources = instruction.operands
    kinds = kinds or (kind,) * len(sources)
    fetch = [reader(source, k, widths) for source, k in zip(sources, kinds, strict=True)]
    write = writer(target, result or kind, width_of(target, widths))
    if "ftz" not in instruction.modifiers or kind != "f32":
        return lambda state: write(state, function(*[f(state) for f in fetch]))

    def execute(state: State) -> None:
        write(state, flush(function(*[flush(f(state)) for f in fetch]).astype(np.float32, copy=False)))

    return execute


def packed(instruction: Instruction, widths: dict[str, int], function: Function) -> Execute:
    """The same on both halves of each operand, which need not be of one type."""
    kind = next(m for m in reversed(instruction.modifiers) if m in PACKED)
    target, *sources = instruction.operands
    fetch = [reader(source, f"b{bits_of(kind)}", widths) for source in sources]

    def execute(state: State) -> None:
        halves = [unpack(state.per_lane(f(state)), kind) for f in fetch]
        state.write(target, pack(function(*halves), kind))

    return execute


def arithmetic(function: Function) -> Callable[[Instruction, dict[str, int]], Execute]:
    """add, sub, mul and others of one type throughout."""

    def build(instruction: Instruction, widths: dict[str, int]) -> Execute:
        kind = instruction.modifiers[-1]
        if "sat" in instruction.modifiers:
            raise NotCoveredError(f"saturation in {instruction.name}")
        if kind in PACKED:
            return packed(instruction, widths, function)
        return elementwise(instruction, widths, function)

    return build


def multiply(instruction: Instruction, widths: dict[str, int]) -> Execute:
    kind = instruction.modifiers[-1]
    if "wide" in instruction.modifiers:
        wide = kind[0] + str(2 * bits_of(kind))
        return elementwise(instruction, widths, lambda a, b: _as(a, wide) * _as(b, wide), result=wide)
    if "hi" in instruction.modifiers:
        bits = bits_of(kind)
        if bits == 64:
            raise NotCoveredError("mul.hi of 64 bits")
        wide = kind[0] + "64"
        return elementwise(instruction, widths, lambda a, b: (_as(a, wide) * _as(b, wide)) >> _as(np.int64(bits), wide))
    return arithmetic(np.multiply)(instruction, widths)


def multiply_add(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """mad of integers."""
    kind = instruction.modifiers[-1]
    if "hi" in instruction.modifiers:
        raise NotCoveredError("mad.hi")
    if "wide" in instruction.modifiers:
        wide = kind[0] + str(2 * bits_of(kind))
        return elementwise(
            instruction, widths, lambda a, b, c: _as(a, wide) * _as(b, wide) + c, (kind, kind, wide), wide
        )
    return elementwise(instruction, widths, lambda a, b, c: a * b + c)


def fused_multiply_add(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """fma: one rounding. (A product of two fp32 numbers is exact in double; the sum is rounded twice, rarely felt.)"""

    def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return a.astype(np.float64) * b + c

    return arithmetic(fma)(instruction, widths)


def divide(instruction: Instruction, widths: dict[str, int]) -> Execute:
    if instruction.modifiers[-1][0] == "f":
        return elementwise(instruction, widths, np.divide)

    def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        b = np.where(b == 0, b.dtype.type(1), b)  # undefined on a GPU
        floor = a // b
        return floor + ((floor * b != a) & ((a < 0) != (b < 0))).astype(a.dtype)

    return elementwise(instruction, widths, quotient)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.fmod(a, np.where(b == 0, b.dtype.type(1), b))


def extreme(ordinary: Function, keeps_nan: Function) -> Callable[[Instruction, dict[str, int]], Execute]:
    """min and max, of two or three numbers; a NaN loses against a number unless .NaN is said."""

    def build(instruction: Instruction, widths: dict[str, int]) -> Execute:
        function = keeps_nan if "NaN" in instruction.modifiers else ordinary
        if instruction.modifiers[-1][0] in "us":
            function = keeps_nan
        return elementwise(instruction, widths, lambda *values: functools.reduce(function, values))

    return build


COMPARISONS: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
COMBINE: dict[str, Function] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def set_predicate(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """setp: a comparison, perhaps combined with another predicate. With a NaN only unordered ones (equ, ...) hold."""
    comparison, kind = instruction.modifiers[0], instruction.modifiers[-1]
    target, *sources = instruction.operands
    if not isinstance(target, Register):
        raise NotCoveredError("setp with two destinations")
    a, b = (reader(source, kind, widths) for source in sources[:2])
    ftz = "ftz" in instruction.modifiers
    other = reader(sources[2], "pred", widths) if len(sources) > 2 else None
    combine = COMBINE[instruction.modifiers[1]] if other is not None else None

    def compare(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if kind[0] != "f" and kind != "bf16":
            return COMPARISONS[comparison](x, y)
        if ftz:
            x, y = flush(x), flush(y)
        unordered = np.isnan(x) | np.isnan(y)
        if comparison in ("num", "nan"):
            return unordered if comparison == "nan" else ~unordered
        if comparison not in COMPARISONS and comparison.endswith("u"):
            return COMPARISONS[comparison[:-1]](x, y) | unordered
        return COMPARISONS[comparison](x, y) & ~unordered

    def execute(state: State) -> None:
        out = compare(a(state), b(state))
        state.write(target, np.asarray(combine(out, other(state)) if combine and other else out))

    return execute


def select(instruction: Instruction, widths: dict[str, int]) -> Execute:
    kind = f"b{bits_of(instruction.modifiers[-1])}"
    return elementwise(instruction, widths, lambda a, b, p: np.where(p, a, b), (kind, kind, "pred"), kind)


def bitwise(function: Function) -> Callable[[Instruction, dict[str, int]], Execute]:
    return lambda instruction, widths: elementwise(instruction, widths, function)


def shift_left(instruction: Instruction, widths: dict[str, int]) -> Execute:
    kind = instruction.modifiers[-1]
    bits = bits_of(kind)

    def shift(a: np.ndarray, by: np.ndarray) -> np.ndarray:
        return np.where(by >= bits, a.dtype.type(0), a << np.minimum(by, bits - 1).astype(a.dtype))

    return elementwise(instruction, widths, shift, (kind, "u32"))


def shift_right(instruction: Instruction, widths: dict[str, int]) -> Execute:
    kind = instruction.modifiers[-1]
    bits = bits_of(kind)

    def shift(a: np.ndarray, by: np.ndarray) -> np.ndarray:
        shifted = a >> np.minimum(by, bits - 1).astype(a.dtype)
        return shifted if kind[0] == "s" else np.where(by >= bits, a.dtype.type(0), shifted)

    return elementwise(instruction, widths, shift, (kind, "u32"))


def funnel_shift(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """shf: a 64-bit value shifted, one half of it kept."""
    left, clamp = "l" in instruction.modifiers, "clamp" in instruction.modifiers

    def shift(low: np.ndarray, high: np.ndarray, by: np.ndarray) -> np.ndarray:
        by = (np.minimum(by, 32) if clamp else by & 31).astype(np.uint64)
        both = high.astype(np.uint64) << np.uint64(32) | low
        return ((both << by) >> np.uint64(32) if left else both >> by).astype(np.uint32)

    return elementwise(instruction, widths, shift)


def extract_bits(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """bfe."""
    kind = instruction.modifiers[-1]
    bits = bits_of(kind)

    def extract(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        # In 64 bits, extended by a's sign or zeros: up to the top, then down again.
        wide = kind[0] + "64"
        start, length = _as(np.minimum(start & 255, 63), wide), _as(np.minimum(length & 255, bits), wide)
        unused = _as(64, wide) - length
        field = (_as(a, wide) >> start << unused) >> np.minimum(unused, _as(63, wide))  # 0 after a shift by 64
        return field.astype(UNSIGNED[bits])

    return elementwise(instruction, widths, extract, (kind, "u32", "u32"))


def insert_bits(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """bfi.b32"""
    if bits_of(instruction.modifiers[-1]) != 32:
        raise NotCoveredError("bfi of 64 bits")

    def insert(a: np.ndarray, b: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        a, b, start, length = (_as(x, "u64") for x in (a, b, start & 255, length & 255))
        mask = ((np.uint64(1) << length) - np.uint64(1)) << start
        return ((b & ~mask) | ((a << start) & mask)).astype(np.uint32)

    return elementwise(instruction, widths, insert, ("b32", "b32", "u32", "u32"))


def permute_bytes(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """prmt.b32: four bytes chosen out of eight; with 8 added to a choice, the sign of that byte."""
    if instruction.modifiers != ("b32",):
        raise NotCoveredError("prmt with a mode")

    def permute(a: np.ndarray, b: np.ndarray, choices: np.ndarray) -> np.ndarray:
        both = np.asarray(b).astype(np.uint64) << np.uint64(32) | np.asarray(a).astype(np.uint64)
        out = np.zeros(np.broadcast(both, choices).shape, np.uint64)
        for i in range(4):
            choice = np.asarray(choices).astype(np.uint64) >> np.uint64(4 * i) & np.uint64(15)
            byte = both >> (choice & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            byte = np.where(choice & np.uint64(8), np.where(byte & np.uint64(128), 255, 0).astype(np.uint64), byte)
            out |= byte << np.uint64(8 * i)
        return out.astype(np.uint32)

    return elementwise(instruction, widths, permute)


def logic_table(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """lop3.b32: any function of three bits, given by its table."""
    *_, table = instruction.operands
    if not isinstance(table, Literal):
        raise NotCoveredError("lop3 with a table in a register")

    def logic(a: np.ndarray, b: np.ndarray, c: np.ndarray, _: np.ndarray) -> np.ndarray:
        out = np.zeros_like(a | b | c)
        for i in range(8):
            if table.value >> i & 1:
                out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return out

    return elementwise(instruction, widths, logic)


def count_bits(a: np.ndarray) -> np.ndarray:
    return np.bitwise_count(a).astype(np.uint32)


def special_function(function: Function) -> Callable[[Instruction, dict[str, int]], Execute]:
    """ex2, lg2, rsqrt, ...: in double precision, then rounded."""

    def build(instruction: Instruction, widths: dict[str, int]) -> Execute:
        if instruction.modifiers[-1] != "f32":
            raise NotCoveredError(f"{instruction.name}.{instruction.modifiers[-1]}")
        return elementwise(instruction, widths, lambda a: function(a.astype(np.float64)).astype(np.float32))

    return build


ROUND_TO_INTEGER: dict[str, Function] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def convert(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """cvt. Floats go to integers with the rounding that is named, clipped to their range; NaN becomes 0."""
    *how, to, source = instruction.modifiers
    if to in PACKED:
        return _convert_to_pair(instruction, widths, to, source)
    if any(mode in how for mode in ("rz", "rm", "rp")):
        raise NotCoveredError(f"cvt with the rounding {how}")
    if "sat" in how and to != "f32":
        raise NotCoveredError("cvt.sat to integers")

    def function(a: np.ndarray) -> np.ndarray:
        if a.dtype.kind != "f":
            if to[0] == "f" or to == "bf16":
                return a.astype(np.float32 if to == "f32" else np.float64)  # fp32 holds no 64 bits: one rounding
            return a.astype(_dtype(to))
        if to[0] in "us":
            rounded = ROUND_TO_INTEGER[next(mode for mode in how if mode in ROUND_TO_INTEGER)](a.astype(np.float64))
            limits = np.iinfo(_dtype(to))
            too_large = rounded >= float(limits.max)  # which fp64 may have rounded up
            inside = np.where(too_large | np.isnan(rounded), 0, np.maximum(rounded, limits.min)).astype(limits.dtype)
            return np.where(too_large, limits.max, inside).astype(limits.dtype)
        if integer := next((mode for mode in how if mode in ROUND_TO_INTEGER), None):
            a = ROUND_TO_INTEGER[integer](a)
        return np.clip(a, 0, 1) if "sat" in how else a

    return elementwise(instruction, widths, function, (source,), to)


def _convert_to_pair(instruction: Instruction, widths: dict[str, int], to: str, source: str) -> Execute:
    """cvt to f16x2 and so on: from two fp32 registers, the upper half first, or from another pair."""
    target, *sources = instruction.operands
    if "relu" in instruction.modifiers or source not in ("f32", *PACKED):
        raise NotCoveredError(f"cvt.{'.'.join(instruction.modifiers)}")
    fetch = [reader(s, source if source == "f32" else f"b{bits_of(source)}", widths) for s in sources]

    def execute(state: State) -> None:
        values = [state.per_lane(f(state)) for f in fetch]
        halves = np.stack(values[::-1], -1) if source == "f32" else unpack(values[0], source)
        state.write(target, pack(halves, to))

    return execute


def _dtype(kind: str) -> np.dtype:
    return np.dtype((SIGNED if kind[0] == "s" else UNSIGNED)[bits_of(kind)])


def _as(a: np.ndarray, kind: str) -> np.ndarray:
    return np.asarray(a).astype(_dtype(kind))


def negate(a: np.ndarray) -> np.ndarray:
    return -a if a.dtype.kind != "u" else (~a + a.dtype.type(1))


BUILDERS: dict[str, Callable[[Instruction, dict[str, int]], Execute]] = {
    "add": arithmetic(np.add),
    "sub": arithmetic(np.subtract),
    "mul": multiply,
    "mad": multiply_add,
    "fma": fused_multiply_add,
    "div": divide,
    "rem": bitwise(remainder),
    "neg": arithmetic(negate),
    "abs": arithmetic(np.abs),
    "min": extreme(np.fmin, np.minimum),
    "max": extreme(np.fmax, np.maximum),
    "and": bitwise(np.bitwise_and),
    "or": bitwise(np.bitwise_or),
    "xor": bitwise(np.bitwise_xor),
    "not": bitwise(np.invert),
    "shl": shift_left,
    "shr": shift_right,
    "shf": funnel_shift,
    "bfe": extract_bits,
    "bfi": insert_bits,
    "prmt": permute_bytes,
    "lop3": logic_table,
    "popc": lambda i, w: elementwise(i, w, count_bits, result="u32"),
    "setp": set_predicate,
    "selp": select,
    "cvt": convert,
    "ex2": special_function(np.exp2),
    "lg2": special_function(np.log2),
    "rcp": special_function(np.reciprocal),
    "sqrt": special_function(np.sqrt),
    "rsqrt": special_function(lambda a: 1 / np.sqrt(a)),
    "sin": special_function(np.sin),
    "cos": special_function(np.cos),
    "tanh": special_function(np.tanh),
}
# Modifiers (after a dot) that some builder understands; every builder raises for a modifier that it does not know.
UNDERSTOOD = {
    "rn", "rz", "rm", "rp", "ftz", "approx", "full", "NaN", "lo", "hi", "wide", "l", "r", "clamp", "wrap", "sat",
    "satfinite", "relu", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
}.union(ROUND_TO_INTEGER, COMPARISONS, COMBINE)  # fmt: skip


def refuse_unknown_modifiers(instruction: Instruction) -> None:
    """A rounding or a mode that were passed over would give slightly wrong numbers in silence."""
    for modifier in instruction.modifiers:
        if modifier not in UNDERSTOOD:
            bits_of(modifier)  # a type, or NotImplementedError
    if instruction.name != "cvt" and {"rz", "rm", "rp", "relu"} & set(instruction.modifiers):
        raise NotCoveredError(f"{instruction.name} with {', '.join(instruction.modifiers)}")
