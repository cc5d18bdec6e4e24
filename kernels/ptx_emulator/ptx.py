"""PTX text as Triton writes it -> a `Program`: instructions with their operands, ready to be executed.

Only Triton's NVPTX output is understood: one entry point, `.loc` comments that name the Python source, inline assembly
in scopes of its own. Format: PTX ISA, chapters 4 and 5.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Register:
    """A named value per thread; names that start with %tid, %ctaid and so on are read-only. `bits`: 0 if it is not
    declared, 1 of a predicate."""

    name: str
    bits: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Literal:
    """An integer, or the bits of a float (0f3F800000) as one."""

    value: int


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset] in bytes; base is a register, or named as a parameter or as shared memory."""

    base: Register
    offset: int


@dataclass(frozen=True, slots=True)
class Pair:
    """d|p: a destination and a predicate that tells whether it is in range."""

    value: Register
    predicate: Register


Operand = Register | Literal | Address | Pair | tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One PTX instruction.

    Attributes:
        name: The text before the first dot, 'ld' of 'ld.global.v4.b32'.
        modifiers: The parts after it, ('global', 'v4', 'b32').
        guard: Predicate register under which it runs, or None; `guard_negated` for @!p.
        source: Its line of Python, 'attend_range.py:146'; '' if the compiler does not name it.
    """

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_negated: bool
    text: str
    source: str


@dataclass(frozen=True)
class Program:
    """One kernel.

    Attributes:
        parameters: (name, type) in order, e.g. ('..._param_0', 'u64').
        num_threads: Per block.
        labels: Name -> index of the next instruction.
    """

    parameters: tuple[tuple[str, str], ...]
    num_threads: int
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]


STATEMENT = re.compile(r"\s*(?:(?P<label>[$\w]+):(?!:)|(?P<scope>[{}])|(?P<text>[^;{}]*(?:\{[^{}]*\}[^;{}]*)*);)")
OPERAND = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|[^,{}\[\]]+")


def parse(ptx: str) -> Program:
    """The program of `ptx`.

    Raises:
        ValueError: Not one entry point in a form that Triton writes.
    """
    if ptx.count(".entry") != 1:
        raise ValueError(f"expected one kernel, found {ptx.count('.entry')}")
    head, _, body = ptx[ptx.index(".entry") :].partition("\n{")
    threads = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)", head)
    if threads is None:
        raise ValueError("the kernel does not say how many threads a block has (.reqntid)")
    parameters = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,\n]*?\s(\w+)(?:\[\d+\])?\s*(?:,|\n)", head)
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    widths: dict[str, int] = {}
    scopes, num_scopes, source = [""], 0, ""
    for kind, text in _statements(body):
        if kind == "label":
            labels[_label(text, scopes[-1])] = len(instructions)
        elif kind == "scope":
            if text == "}":
                scopes.pop()
                if not scopes:
                    break
            else:
                num_scopes += 1
                scopes.append(f"scope{num_scopes}:")
        elif text.startswith(".loc "):
            source = text.removeprefix(".loc ")
        elif text.startswith(".reg"):
            widths |= _declared(text, scopes[-1])
        elif text and not text.startswith("."):
            instructions.append(_instruction(text, source, scopes[-1], widths))
    return Program(tuple((name, kind) for kind, name in parameters), int(threads[1]), tuple(instructions), labels)


def _statements(body: str) -> Iterator[tuple[str, str]]:
    """('label' | 'scope' | 'text', its text); `.loc` lines become '.loc file.py:line'."""
    lines = []
    for line in body.split("\n"):
        if line.lstrip().startswith(".loc"):
            where = re.search(r"//\s*([^\s:]+:\d+)", line)
            lines.append(f".loc {where[1] if where else ''};")
        else:
            lines.append(line.partition("//")[0])
    text, position = "\n".join(lines), 0
    while match := STATEMENT.match(text, position):
        position = match.end()
        kind = str(match.lastgroup)
        yield kind, " ".join(match[kind].split()) + (" " if match[kind].strip() == ".loc" else "")


def _declared(text: str, scope: str) -> dict[str, int]:
    """Widths of '.reg .b32 %r<99>' as {'%r': 32}, or of '.reg .b32 a, b' inside of a scope as {'scope1:a': 32, ...}."""
    match = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text)
    if match is None:
        raise ValueError(f"not a declaration of registers: {text}")
    bits = 1 if match[1] == "pred" else int(re.sub(r"\D", "", match[1]))
    names = [name.strip() for name in match[2].split(",")]
    return {name.partition("<")[0] if "<" in name else scope + name: bits for name in names}


def _instruction(text: str, source: str, scope: str, widths: dict[str, int]) -> Instruction:
    guard, negated, rest = None, False, text
    if match := re.match(r"@(!?)(\S+)\s+(.*)", text):
        negated, guard, rest = match[1] == "!", _register(match[2], scope, widths), match[3]
    opcode, _, operands = rest.partition(" ")
    name, *modifiers = opcode.split(".")
    if name == "bra":
        operands = _label(operands.strip(), scope)
    parsed = tuple(_operand(operand.strip(), scope, widths) for operand in OPERAND.findall(operands) if operand.strip())
    return Instruction(name, tuple(modifiers), parsed, guard, negated, text, source)


def _label(name: str, scope: str) -> str:
    """Inline assembly's labels are its scope's own; the compiler's begin with $."""
    return name if name.startswith("$") else scope + name


def _register(name: str, scope: str, widths: dict[str, int]) -> Register:
    name = scope + name if scope + name in widths else name
    return Register(name, widths.get(name) or widths.get(name.rstrip("0123456789"), 0))


def _operand(text: str, scope: str, widths: dict[str, int]) -> Operand:
    if text.startswith("{"):
        return tuple(_operand(part.strip(), scope, widths) for part in text[1:-1].split(","))
    if text.startswith("["):
        text, comma, corner = text[1:-1].partition(",")
        if comma:  # [map, {coordinates}] of a tensor
            return (_operand(f"[{text}]", scope, widths), *_operand(corner.strip(), scope, widths))
        base, _, offset = (part.strip() for part in text.partition("+"))
        return Address(_register(base, scope, widths), int(offset or "0", 0))
    if "|" in text:
        value, predicate = (part.strip() for part in text.split("|"))
        return Pair(_register(value, scope, widths), _register(predicate, scope, widths))
    if re.match(r"0[fFdD][0-9a-fA-F]+$", text):
        return Literal(int(text[2:], 16))
    if re.match(r"-?(0x[0-9a-fA-F]+|\d+)U?$", text):
        return Literal(int(text.rstrip("U"), 0))
    return _register(text, scope, widths)
