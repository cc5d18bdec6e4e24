"""Reads TTIR, as MLIR prints it, into operations whose operands and results are resolved.

MLIR has no stable Python interface in Triton, but its text is regular. Every line is one of

    %r, %s = name keyword %operand, ... {attributes} : types loc(#loc7)      an operation
    ... {   or   ... ({                                                      an operation that opens a region
    ^bb1(%arg: type, ...):                                                   a block of the region that is open
    }   or   } else {   or   } do {   or   }) : types                        a region's end

The types after the colon belong to operands or results, by operation; `_result_types` knows the handful of rules.
Names are unique within a region only, so that each definition gets a `Value` of its own.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from triton_on_cpu.errors import TritonOnCpuError

NAME = r"%[\w$.#-]+"


class NotSupportedError(TritonOnCpuError):
    """A kernel uses something that cannot be compiled for a CPU.

    `operation` is the operation as Triton or MLIR names it, `file` and `line` its place in the kernel's source ('' and
    0 if unknown), `advice` what to do instead.
    """

    def __init__(self, operation: str, file: str = "", line: int = 0, advice: str = "") -> None:
        where = f" ({file or 'the kernel'}, line {line})" if line else ""
        super().__init__(f"{operation} cannot be compiled for a CPU{where}.{' ' + advice if advice else ''}")
        self.operation, self.file, self.line, self.advice = operation, file, line, advice


@dataclass(frozen=True)
class Type:
    """A tensor's shape, or () for a scalar, and what an element is, as MLIR names it: f32, bf16, i1, ptr<bf16>."""

    shape: tuple[int, ...]
    element: str

    @property
    def is_pointer(self) -> bool:
        return self.element.startswith("ptr<")

    @property
    def pointee(self) -> str:
        return self.element[4:-1]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(eq=False)
class Op:
    """An operation. `text` is its line without results, types and location, where keywords and attributes are."""

    name: str
    operands: list["Value"]
    text: str
    types: str = ""
    results: list["Value"] = field(default_factory=list)
    regions: list["Block"] = field(default_factory=list)
    successors: list[tuple[str, list["Value"]]] = field(default_factory=list)  # (label, arguments) of cf's branches
    block: "Block" = field(init=False, repr=False)
    file: str = ""
    line: int = 0

    @property
    def result(self) -> "Value":
        return self.results[0]

    @property
    def keyword(self) -> str:
        """The word after the name: cmpi's predicate, the axis of a program id, what an atomic does."""
        match = re.match(r'"?[\w.]+"?\s+(\w+)', self.text)
        return match[1] if match else ""

    def integer(self, name: str, default: int = 0) -> int:
        """An attribute, an integer or truth value."""
        found = re.search(rf"\b{name} = (-?\d+|true|false)", self.text)
        if not found:
            return default
        return {"true": 1, "false": 0}[found[1]] if found[1] in ("true", "false") else int(found[1])

    def string(self, name: str) -> str:
        """An attribute, a word or a string; '' if it is absent."""
        found = re.search(rf'\b{name} = (?:"((?:[^"\\]|\\.)*)"|(\w+))', self.text)
        return (found[1] or found[2] or "") if found else ""

    def unsupported(self, advice: str, what: str = "") -> NotSupportedError:
        return NotSupportedError(what or self.name, self.file, self.line, advice)


NO_OP = Op("", [], "")


@dataclass(eq=False)
class Value:
    """An operation's result, or (of NO_OP) an argument of a block. `uses` are the operations that take it."""

    type: Type
    op: Op = NO_OP
    index: int = 0  # among the operation's results
    name: str = ""
    uses: list[Op] = field(default_factory=list)


@dataclass(eq=False)
class Block:
    label: str
    arguments: list[Value]
    ops: list[Op] = field(default_factory=list)
    parent: Op = NO_OP  # or: a block of the function


@dataclass(eq=False)
class Function:
    name: str
    arguments: list[Value]
    blocks: list[Block]


def groups_of(pattern: str, text: str) -> tuple[str, ...]:
    """The texts of a pattern's groups. Raises NotSupportedError if it matches nothing."""
    match = re.search(pattern, text)
    if match is None:
        raise NotSupportedError(f"TTIR's `{text}`")
    return match.groups()


def parse_type(text: str) -> Type:
    text = text.strip()
    if not text.startswith("tensor<"):
        return Type((), _element(text))
    dims, rest = groups_of(r"^((?:\d+x)*)(.*)$", text[len("tensor<") : -1])
    return Type(tuple(int(d) for d in dims.split("x") if d), _element(rest))


def parse(text: str) -> Function:
    """The module's one function.

    Raises:
        NotSupportedError: Several functions (noinline), or a form that is not known here.
    """
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.M))
        self.places: dict[str, tuple[str, int]] = {}
        self.function: Function | None = None
        self.scopes: list[dict[str, Value | list[Value]]] = [{}]
        self.open: list[tuple[Op | None, Block]] = []  # operations whose regions are open, and their current blocks
        self.headers: list[tuple[Op, list[str], int]] = []  # their results' names and number, set at ")} : types"

    def parse(self) -> Function:
        for raw in self.lines:
            if not raw.strip() or raw.startswith(("#", "module")):
                continue
            line, location = _cut_locations(raw)
            line = re.sub(r"\s+// .*$", "", line).strip()
            file, number = self.place(location)
            if line.startswith("tt.func"):
                self.open_function(line, file, number)
            elif line.startswith("^"):
                self.open_block(line)
            elif line.startswith("}"):
                if not self.open:
                    break
                self.close_region(line, file, number)
            else:
                self.read_operation(line, file, number)
        if self.function is None:
            raise NotSupportedError("a module without a function")
        return self.function

    def place(self, location: str, depth: int = 0) -> tuple[str, int]:
        """(file, line) of a location, of the innermost call if it was inlined."""
        if location in self.places or not location or depth > 30:
            return self.places.get(location, ("", 0))
        body = self.locations.get(location, location)
        found = re.match(r'"(.*)":(\d+):\d+', body)
        if found:
            answer = found[1], int(found[2])
        else:
            known = (self.place(inner, depth + 1) for inner in re.findall(r"#loc\d*", body))
            answer = next((place for place in known if place[1]), ("", 0))
        self.places[location] = answer
        return answer

    def look_up(self, name: str) -> Value:
        base, _, index = name.partition("#")
        for scope in reversed(self.scopes):
            if base in scope:
                found = scope[base]
                return found if isinstance(found, Value) else found[int(index or 0)]
        raise NotSupportedError(f"TTIR in which {name} is not defined")

    def define(self, name: str, value: Value) -> Value:
        self.scopes[-1][name] = value
        return value

    def open_function(self, line: str, file: str, number: int) -> None:
        if self.function is not None:
            raise NotSupportedError("a call of a noinline function", file, number, "Let Triton inline it.")
        (name,) = groups_of(r"@([\w$.]+)", line)
        arguments = self.arguments(line[line.index("(") : line.rindex("attributes")])
        self.function = Function(name, arguments, [Block("entry", arguments)])
        self.open.append((None, self.function.blocks[0]))
        self.scopes.append({})

    def arguments(self, text: str) -> list[Value]:
        found = re.findall(r"(%[\w$.-]+): (!?[\w.]+(?:<(?:[^<>]|<[^<>]*>)*>)?)", text)
        return [self.define(name, Value(parse_type(kind), name=name[1:])) for name, kind in found]

    def open_block(self, line: str) -> None:
        (label,) = groups_of(r"^\^(\w+)", line)
        owner, current = self.open[-1]
        if owner is None:
            current = Block(label, [])
            assert self.function is not None
            self.function.blocks.append(current)
            self.open[-1] = (None, current)
        elif current.ops:
            raise owner.unsupported("Write it with if, for and while.", f"{owner.name} with jumps inside")
        current.arguments.extend(self.arguments(line))

    def open_region(self, op: Op) -> None:
        op.regions.append(Block("", [], parent=op))
        self.open.append((op, op.regions[-1]))
        self.scopes.append({})

    def close_region(self, line: str, file: str, number: int) -> None:
        owner, _ = self.open.pop()
        self.scopes.pop()
        if owner is None:
            return
        if line.endswith("{"):  # } else {   or   } do {
            self.open_region(owner)
            return
        _, names, count = self.headers.pop()
        if line.startswith("})"):
            owner.types = line.split(" : ", 1)[1]
            self.define_results(owner, names, count)
        owner.file, owner.line = (file, number) if number else (owner.file, owner.line)

    def read_operation(self, line: str, file: str, number: int) -> None:
        found = re.match(r"(%[\w$.-]+(?:, %[\w$.-]+)*)(?::(\d+))? = ", line)
        names = found[1].split(", ") if found else []
        count = int(found[2]) if found and found[2] else len(names)
        op = self.operation(line[found.end() :] if found else line)
        op.file, op.line = file, number
        op.block = self.open[-1][1]
        op.block.ops.append(op)
        for operand in op.operands:
            operand.uses.append(op)
        if not line.endswith("({"):  # else the types come at the region's end
            self.define_results(op, names, count)
        if line.endswith("{"):
            self.headers.append((op, names, count))
            self.open_region(op)
            self.define_loop_arguments(op, line)

    def operation(self, body: str) -> Op:
        (name,) = groups_of(r'^"?([\w.]+)"?', body)
        text, types = _split_types_off(body)
        if name == "scf.for":
            bounds = groups_of(rf" = ({NAME}) to ({NAME}) step ({NAME})", body)
            names = [*bounds, *(initial for _, initial in _carried(body))]
            types = _between_arrow_and_brace(body)
        elif name == "scf.while":
            names, types = [initial for _, initial in _carried(body)], _between_arrow_and_brace(body)
        elif name == "scf.if":
            names, types = re.findall(NAME, body)[:1], _between_arrow_and_brace(body)
        elif name in ("cf.br", "cf.cond_br"):
            names = re.findall(NAME, body.split("^")[0])
        else:
            names = re.findall(NAME, re.sub(r'"(?:[^"\\]|\\.)*"', '""', text))
        op = Op(name, [self.look_up(n) for n in names], text, types)
        if name.startswith("cf."):
            for label, given in re.findall(r"\^(\w+)(?:\(([^)]*)\))?", body):
                op.successors.append((label, [self.look_up(n) for n in re.findall(NAME, given.split(":")[0])]))
        return op

    def define_results(self, op: Op, names: list[str], count: int) -> None:
        kinds = _result_types(op, count)
        op.results = [Value(kind, op, i, names[0][1:] if names else "") for i, kind in enumerate(kinds)]
        if len(names) == 1 and count > 1:
            self.scopes[-1][names[0]] = op.results
        else:
            for name, value in zip(names, op.results, strict=True):
                self.define(name, value)

    def define_loop_arguments(self, op: Op, line: str) -> None:
        """Define the values that a loop carries: they are named in its header, not in a block's."""
        names, initials = [name for name, _ in _carried(line)], op.operands
        if op.name == "scf.for":
            names = [*groups_of(r"scf\.for (?:unsigned )?(%[\w$.-]+) = ", line), *names]
            initials = [op.operands[0], *op.operands[3:]]
        if op.name in ("scf.for", "scf.while"):
            for name, initial in zip(names, initials, strict=True):
                op.regions[0].arguments.append(self.define(name, Value(initial.type, name=name[1:])))


def _element(text: str) -> str:
    if text.startswith("!tt.ptr<"):
        return f"ptr<{_element(text[len('!tt.ptr<') : -1].split(',')[0])}>"
    return text.split(",")[0].strip()


def _outside(text: str) -> Iterator[int]:
    """The places of a text that are outside of all brackets and strings."""
    depth, is_quoted = 0, False
    for i, character in enumerate(text):
        is_quoted ^= character == '"' and text[i - 1] != "\\"
        if not is_quoted:
            depth += (character in "<({[") - (character in ">)}]" and text[i - 1] != "-")
            if depth == 0:
                yield i


def _cut_locations(line: str) -> tuple[str, str]:
    """The line without ` loc(...)`, and what the last of them held."""
    last, at = "", line.find(" loc(")
    while at >= 0:
        end = at + 4 + next(i for i in _outside(line[at + 4 :]) if i)  # of the first bracket that closes
        last, line = line[at + 5 : end], line[:at] + line[end + 1 :]
        at = line.find(" loc(", at)
    return line.rstrip(), last


def _split_types_off(body: str) -> tuple[str, str]:
    """(text before, text after) the first ' : ' outside of all brackets and strings, or ' -> ' without operands."""
    for i in _outside(body):
        if body.startswith((" : ", " -> "), i):
            return body[:i], body[i + 3 :] if body[i + 1] == ":" else body[i:]
    return body, ""


def _carried(line: str) -> list[tuple[str, str]]:
    """(name, initial value's name) of each value that a loop carries, from its header."""
    found = re.search(r"(?:iter_args|scf\.while) ?\((.*?)\)", line)
    return re.findall(rf"(%[\w$.-]+) = ({NAME})", found[1]) if found else []


def _between_arrow_and_brace(body: str) -> str:
    found = re.search(r"-> (?:\((.*)\)|([^ ]+))\s+(?::|\{)", body)
    return (found[1] or found[2] or "") if found else ""


def _split(types: str) -> list[Type]:
    """Types that commas separate."""
    commas = [i for i in _outside(types) if types[i] == ","]
    parts = [types[i + 1 : j] for i, j in zip([-1, *commas], [*commas, len(types)], strict=True)]
    return [parse_type(part) for part in parts if part.strip()]


def _result_types(op: Op, count: int) -> list[Type]:
    if count == 0:
        return []
    if op.name == "arith.constant" and not op.types:  # true, false
        return [Type((), "i1")]
    if "->" in op.types:
        after = op.types.rsplit("->", 1)[1].strip()
        kinds = _split(after[1:-1] if after.startswith("(") else after)
    elif " to " in op.types:
        kinds = [parse_type(op.types.rsplit(" to ", 1)[1])]
    else:
        kinds = _split(op.types)
        if op.name in ("arith.cmpi", "arith.cmpf"):
            kinds = [Type(kinds[0].shape, "i1")]
        elif op.name == "tt.load":
            kinds = [Type(kinds[0].shape, kinds[0].pointee)]
        elif op.name == "arith.select":
            kinds = kinds[-1:]
        elif not op.name.startswith("scf."):
            kinds = kinds[:1]
    kinds = kinds * count if len(kinds) == 1 else kinds
    if len(kinds) != count:
        raise op.unsupported("", f"TTIR's `{op.text}` with {count} results")
    return kinds
