"""One element of an elementwise operation, as a C expression of its operands' elements.

C has no bf16, fp16 or fp8 of its own here. A bf16 or fp16 value is a `float` that such a number can hold: the float
operation is done, then rounded to nearest even, which is what one rounding would have given (24 bits are enough for
+ - * / and sqrt of numbers of 11). An fp8 value is its code, a byte, until it is converted. An i1 is 0 or 1.
"""

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from triton_on_cpu.ttir import Op


@dataclass(frozen=True)
class Kind:
    """How C holds an element: the type of a value, the type in a tensor's memory, and what converts between them."""

    value: str
    stored: str
    num_bytes: int
    load: str = ""
    store: str = ""
    round: str = ""  # after arithmetic in float

    @property
    def bits(self) -> int:
        return 1 if self.value == "_Bool" else 8 * self.num_bytes

    @property
    def is_float(self) -> bool:
        return self.value in ("float", "double")

    @property
    def unsigned(self) -> str:
        return self.value if self.value == "_Bool" else f"u{self.value}"

    def loaded(self, text: str) -> str:
        """The value of an element as it is stored."""
        return f"({self.load}({text}))" if self.load else text

    def to_store(self, text: str) -> str:
        """A value as it is to be stored."""
        return f"{self.store}({text})" if self.store else text


KINDS = {
    "f32": Kind("float", "float", 4),
    "f64": Kind("double", "double", 8),
    "bf16": Kind("float", "uint16_t", 2, "bf16_to_f32", "bf16_of_f32", "round_bf16"),
    "f16": Kind("float", "uint16_t", 2, "f16_to_f32", "f16_of_f32", "round_f16"),
    "f8E4M3FN": Kind("uint8_t", "uint8_t", 1),
    "i1": Kind("_Bool", "uint8_t", 1, "0 != "),
    "i8": Kind("int8_t", "int8_t", 1),
    "i16": Kind("int16_t", "int16_t", 2),
    "i32": Kind("int32_t", "int32_t", 4),
    "i64": Kind("int64_t", "int64_t", 8),
    "index": Kind("int64_t", "int64_t", 8),
}
FP8 = {"f8E4M3FN": "e4m3"}


def kind_of(element: str) -> Kind:
    """The kind of an element, which may be a pointer."""
    if element.startswith("ptr<"):
        name = f"{kind_of(element[4:-1]).stored} *"
        return Kind(name, name, 8)
    return KINDS[element]


def kind_in_array(element: str) -> Kind:
    """How a tensor's array holds an element: as memory does, except fp16, whose conversions take many instructions."""
    return KINDS["f32"] if element == "f16" else kind_of(element)


FLOAT_COMPARISONS = {
    "oeq": "{a} == {b}", "ogt": "{a} > {b}", "oge": "{a} >= {b}", "olt": "{a} < {b}", "ole": "{a} <= {b}",
    "one": "({a} < {b}) | ({a} > {b})", "ord": "({a} == {a}) & ({b} == {b})",
    "ueq": "!(({a} < {b}) | ({a} > {b}))", "ugt": "!({a} <= {b})", "uge": "!({a} < {b})", "ult": "!({a} >= {b})",
    "ule": "!({a} > {b})", "une": "{a} != {b}", "uno": "({a} != {a}) | ({b} != {b})", "true": "1", "false": "0",
}  # fmt: skip
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
WRAPPING = {"addi": "+", "subi": "-", "muli": "*"}
BITWISE = {"andi": "&", "ori": "|", "xori": "^"}
# In numbers.h for fp32, in libm for f64.
FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "abs", "floor", "ceil", "sin", "cos", "tanh", "erf")
# By operation, C of the operands {0}, {1}, {2}. {T}: the result's type, {U}: the unsigned one; {s}, {u}: what makes an
# integer operand signed (a true i1 is -1), or unsigned; {f}: f32 or f64, {d}: _f64 for f64, {l}: libm's f for float.
# Results of these are rounded to the type,
ROUNDED = {
    **{f"math.{name}": f"{name}_{{f}}({{0}})" for name in FUNCTIONS},
    "math.absf": "abs_{f}({0})", "tt.precise_sqrt": "sqrt_{f}({0})", "math.fma": "fma{l}({0}, {1}, {2})",
    "arith.addf": "{0} + {1}", "arith.subf": "{0} - {1}", "arith.mulf": "{0} * {1}", "arith.divf": "{0} / {1}",
    "tt.precise_divf": "{0} / {1}", "arith.remf": "fmod{l}({0}, {1})",
    "arith.sitofp": "({T}){s}{0}", "arith.uitofp": "({T}){u}{0}",
}  # fmt: skip
# and of these not: they are exact, or wrap around, for which they are computed unsigned.
EXACT = {
    **{f"arith.{name}": f"({{T}})(({{U}}){{0}} {sign} ({{U}}){{1}})" for name, sign in WRAPPING.items()},
    **{f"arith.{name}": f"({{0}} {sign} {{1}})" for name, sign in BITWISE.items()},
    "arith.maxsi": "({s}{0} > {s}{1} ? {0} : {1})", "arith.minsi": "({s}{0} < {s}{1} ? {0} : {1})",
    "arith.maxui": "({u}{0} > {u}{1} ? {0} : {1})", "arith.minui": "({u}{0} < {u}{1} ? {0} : {1})",
    "arith.extsi": "({T}){s}{0}", "arith.extui": "({T}){u}{0}", "arith.trunci": "({T}){0}",
    "arith.index_cast": "({T}){0}", "math.absi": "({0} < 0 ? -{0} : {0})",
    **{f"arith.{name}": f"{name}{{d}}({{0}}, {{1}})" for name in ("maxnumf", "minnumf", "maximumf", "minimumf")},
    "arith.select": "({0} ? {1} : {2})", "arith.negf": "(-{0})",
    "tt.addptr": "{0} + {1}", "tt.int_to_ptr": "({T}){0}", "tt.ptr_to_int": "(int64_t){0}",
    "tt.get_program_id": "program[{axis}]", "tt.get_num_programs": "l->grid[{axis}]",
}  # fmt: skip
# Into an i1, of which C would make 1 of any number.
INTO_TRUTH_VALUES = {
    **{f"arith.{name}": f"(({{0}} {sign} {{1}}) & 1)" for name, sign in {**WRAPPING, **BITWISE}.items()},
    "arith.trunci": "({0} & 1)",
}


def constant_text(op: Op) -> str:
    """The C literal of `arith.constant`, a number that all elements share."""
    text = re.sub(r"^arith\.constant (?:\{[^}]*\} )?", "", op.text).strip()
    found = re.match(r"dense<(.*)>$", text)
    text = found[1] if found else text
    element = op.result.type.element
    if text.startswith(("[", '"')):
        raise op.unsupported("Load the numbers from a tensor.", "a constant tensor of different numbers")
    if text in ("true", "false"):
        return "1" if text == "true" else "0"
    if element in FP8:
        value = _float_of(text, element)
        if value:
            raise op.unsupported("Convert it from fp32 with .to().", "an fp8 constant")
        return "0x80" if math.copysign(1, value) < 0 else "0"
    if KINDS[element].is_float:
        return _float_literal(_float_of(text, element), element)
    if element in ("i64", "index"):
        return f"INT64_C({text})" if int(text) > -(2**63) else "INT64_MIN"
    return f"(int32_t)({text}LL)" if int(text) == -(2**31) else f"({text})" if text.startswith("-") else text


def _float_of(text: str, element: str) -> float:
    if not text.lower().startswith("0x"):
        return float(text)
    bits = int(text, 16)
    if element == "bf16":
        bits, element = bits << 16, "f32"
    code, size = {"f32": ("<f", 4), "f16": ("<e", 2), "f64": ("<d", 8)}.get(element, ("<f", 4))
    return struct.unpack(code, bits.to_bytes(size, "little"))[0]


def _float_literal(value: float, element: str) -> str:
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    text = f"{value!r}{'' if element == 'f64' else 'f'}"
    return f"({text})" if text.startswith("-") else text


def compute(op: Op, x: list[str]) -> str:
    """A C expression of one element of `op`'s result; x are its operands' elements.

    Raises:
        NotSupportedError: No such operation is known.
    """
    name = op.name.partition(".")[2]
    if name in HANDLERS:
        return HANDLERS[name](op, name, x)
    template = ROUNDED.get(op.name) or EXACT.get(op.name)
    if template is None:
        what = "functions" if op.name.startswith("math.") else "operations"
        raise op.unsupported(f"Use the interpreter (TRITON_INTERPRET=1) or other {what}.")
    kind = kind_of(op.result.type.element)
    source = kind_of(op.operands[0].type.element) if op.operands else kind
    if kind.bits == 1:
        template = INTO_TRUTH_VALUES.get(op.name, template)
    signed, unsigned = ("-(int)", "") if source.bits == 1 else ("", f"({source.unsigned})")
    f, d, letter = ("f64", "_f64", "") if kind.value == "double" else ("f32", "", "f")
    types = {"T": kind.value, "U": kind.unsigned, "s": signed, "u": unsigned, "f": f, "d": d, "l": letter}
    text = template.format(*x, **types, axis="xyz".find(op.keyword))
    return f"{kind.round}({text})" if op.name in ROUNDED else text


def _shift(op: Op, name: str, x: list[str]) -> str:
    """As a GPU shifts: by as many bits as there are, or more, nothing is left but the sign."""
    kind = KINDS[op.result.type.element]
    sign = "<<" if name == "shli" else ">>"
    number = kind.value if name == "shrsi" else kind.unsigned
    if re.fullmatch(r"\d+", x[1]) and int(x[1]) < kind.bits:
        return f"({kind.value})(({number}){x[0]} {sign} {x[1]})"
    by = f"({kind.unsigned}){x[1]}"
    if name == "shrsi":
        return f"({kind.value})({x[0]} >> ({by} < {kind.bits} ? {x[1]} : {kind.bits - 1}))"
    return f"({by} < {kind.bits} ? ({kind.value})(({number}){x[0]} {sign} ({by} & {kind.bits - 1})) : 0)"


def _divide(op: Op, name: str, x: list[str]) -> str:
    """Towards zero, without a trap. The C compiler makes multiplications of divisors that it knows."""
    kind = KINDS[op.result.type.element]
    if re.fullmatch(r"[1-9]\d*", x[1]):
        number = kind.unsigned if name.endswith("ui") else kind.value
        return f"({kind.value})(({number}){x[0]} {'/' if name.startswith('div') else '%'} ({number}){x[1]})"
    return f"{name}_{op.result.type.element}({x[0]}, {x[1]})"


def _compare_integers(op: Op, name: str, x: list[str]) -> str:
    predicate = op.keyword
    kind = kind_of(op.operands[0].type.element)
    if predicate in ("eq", "ne"):
        return f"({x[0]} {COMPARISONS[predicate]} {x[1]})"
    if kind.bits == 1:  # a signed true is -1
        cast = "-(int)" if predicate.startswith("s") else "(int)"
    else:
        cast = f"({kind.value if predicate.startswith('s') else kind.unsigned})"
    return f"({cast}{x[0]} {COMPARISONS[predicate[1:]]} {cast}{x[1]})"


def _compare_floats(op: Op, name: str, x: list[str]) -> str:
    return f"({FLOAT_COMPARISONS[op.keyword].format(a=x[0], b=x[1])})"


def _clamp(op: Op, name: str, x: list[str]) -> str:
    """tl.clamp: a NaN becomes the lower bound, unless it is to be kept."""
    double = "_f64" if op.result.type.element == "f64" else ""
    suffix = "imumf" if "propagateNan = all" in op.text else "numf"
    return f"min{suffix}{double}(max{suffix}{double}({x[0]}, {x[1]}), {x[2]})"


def _float_to_integer(op: Op, name: str, x: list[str]) -> str:
    """As on a GPU: rounded towards zero; a number out of range becomes the nearest integer, NaN 0.

    Integers of fewer than 32 bits are the lowest bits of 32.
    """
    kind = KINDS[op.result.type.element]
    sign = "u" if name == "fptoui" else "i"
    double = "f64" if op.operands[0].type.element == "f64" else "f32"
    text = f"({kind.value}){sign}{max(32, kind.bits)}_of_{double}({x[0]})"
    return f"(({text}) & 1)" if kind.bits == 1 else text


def _convert_float(op: Op, name: str, x: list[str]) -> str:
    """Between floats of any width; to nearest even, or towards zero where Triton says so."""
    source, target = op.operands[0].type.element, op.result.type.element
    text = f"{FP8[source]}_to_f32({x[0]})" if source in FP8 else x[0]
    if op.string("rounding") == "rtz":
        raise op.unsupported("Leave out fp_downcast_rounding='rtz'.", "rounding towards zero")
    if target in FP8:
        return f"{FP8[target]}_of_f32({text})"
    if KINDS[source].num_bytes > KINDS[target].num_bytes or {source, target} == {"bf16", "f16"}:
        return f"{KINDS[target].round}((float)({text}))"
    return f"({KINDS[target].value})({text})"


def _bitcast(op: Op, name: str, x: list[str]) -> str:
    source, target = op.operands[0].type.element, op.result.type.element
    if target.startswith("ptr<"):
        return f"({kind_of(target).value})({x[0]})"
    a, b = KINDS[source], KINDS[target]
    bits = x[0] if not a.is_float else f"{a.store}({x[0]})" if a.store else f"bits_of_{source}({x[0]})"
    if not b.is_float:
        return f"({b.value}){bits}"
    return f"{b.load}((uint16_t){bits})" if b.load else f"{target}_of_bits({bits})"


def _inline_ptx(op: Op, name: str, x: list[str]) -> str:
    raise op.unsupported(
        "Give the kernel a plain variant beside its PTX, and choose it where the target's backend is 'cpu'.",
        "inline PTX (tl.inline_asm_elementwise)",
    )


HANDLERS: dict[str, Callable[[Op, str, list[str]], str]] = {
    **dict.fromkeys(("shli", "shrsi", "shrui"), _shift),
    **dict.fromkeys(("divsi", "remsi", "divui", "remui"), _divide),
    **dict.fromkeys(("fptosi", "fptoui"), _float_to_integer),
    **dict.fromkeys(("extf", "truncf", "fp_to_fp"), _convert_float),
    "cmpi": _compare_integers,
    "cmpf": _compare_floats,
    "bitcast": _bitcast,
    "clampf": _clamp,
    "elementwise_inline_asm": _inline_ptx,
}
