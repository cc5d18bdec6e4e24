"""The C of one kernel while it is written: names of arrays and scalars, and elements of the other tensors.

Where a tensor's element comes from is decided here. Scalars and arrays have C names. A `running` tensor, which a loop
moves by the same scalar in each pass, is its first value plus an offset. Everything else is computed from its operands'
elements, each piece at the outermost loop level at which its indices are known.
"""

from collections.abc import Callable
from dataclasses import dataclass

from triton_on_cpu import elements
from triton_on_cpu.elements import kind_in_array, kind_of
from triton_on_cpu.nest import ZERO, Index, Nest, constant_index, flat_index, reshaped, weighted_sum
from triton_on_cpu.plan import Plan
from triton_on_cpu.ttir import Function, NotSupportedError, Op, Type, Value, groups_of

MAX_STACK_BYTES = 4 << 20  # half of the calling thread's stack


@dataclass(frozen=True)
class Site:
    """A place in the kernel's source that a checked launch may name (`fault.site` is an index into `sites`)."""

    file: str
    line: int
    what: str  # 'load', 'store', 'atomic', 'assert' or 'loop'
    argument: int  # which one an access is to; -1 if its pointer cannot be traced to one
    message: str = ""  # an assertion's


Emitter = Callable[["Kernel", Op], None]
ElementWriter = Callable[["Kernel", Nest, Op, list[Index]], str]


class Kernel:
    """The C of a kernel, written so far.

    Args:
        emit: Writes an operation where it stands.
        element_writers: By operation, C of one element of a result that is not computed from its operands' elements.
    """

    def __init__(
        self, function: Function, checked: bool, emit: Emitter, element_writers: dict[str, ElementWriter]
    ) -> None:
        self.function, self.checked = function, checked
        self.plan = Plan(function, checked)
        self.emit, self.element_writers = emit, element_writers
        self.out: list[str] = []
        self.scalar: dict[Value, str] = {}
        self.array: dict[Value, str] = {}
        self.tile_rows = 16  # of AMX, see products.h
        self.running: dict[Value, tuple[Value, str]] = {}  # (first value, C name of the offset)
        self.sites: list[Site] = []
        self.stack_bytes = 0
        self.num_names = 0

    # ---- names

    def fresh(self, prefix: str) -> str:
        self.num_names += 1
        return f"{prefix}{self.num_names}"

    def nest(self, shape: tuple[int, ...], inner: int | None = None) -> Nest:
        self.num_names += 1
        return Nest(self.num_names, shape, inner)

    def new_array(self, kind: Type) -> str:
        name = self.fresh("a")
        held = kind_in_array(kind.element)
        self.stack_bytes += kind.numel * held.num_bytes
        self.out.append(f"{held.stored} {name}[{kind.numel}] ALIGNED;")
        return name

    def set_scalar(self, value: Value, text: str) -> None:
        self.scalar[value] = self.fresh("s")
        self.out.append(f"{kind_of(value.type.element).value} {self.scalar[value]} = {text};")

    def compute_scalars(self, op: Op) -> None:
        """The results of an elementwise operation on scalars."""
        for value in op.results:
            if op.name == "arith.constant":
                self.scalar[value] = elements.constant_text(op)
            else:
                self.set_scalar(value, elements.compute(op, [self.scalar[x] for x in op.operands]))

    def declare(self, value: Value) -> str:
        """The name of a variable, or an array, to be assigned to."""
        if value.type.shape:
            name = self.array[value] = self.new_array(value.type)
        else:
            name = self.scalar[value] = self.fresh("v")
            self.out.append(f"{kind_of(value.type.element).value} {name};")
        return name

    def site(self, op: Op, what: str, argument: int = -1, message: str = "") -> int:
        """The number of a place that a checked launch may name."""
        self.sites.append(Site(op.file, op.line, what, argument, message))
        return len(self.sites) - 1

    # ---- elements

    def sources(self, value: Value, indices: list[Index]) -> tuple[Value, list[Index]] | None:
        """Which element of its operand an element of a shaped value is; None if it is computed."""
        op = value.op
        if not op.operands:
            return None
        operand = op.operands[0]
        match op.name:
            case "tt.splat":
                return operand, []
            case "tt.expand_dims":
                return operand, [index for d, index in enumerate(indices) if d != op.integer("axis")]
            case "tt.broadcast":
                return operand, [ZERO if n == 1 else i for n, i in zip(operand.type.shape, indices, strict=True)]
            case "tt.trans":
                before = [ZERO] * len(indices)
                for d, source in enumerate(self.order(op)):
                    before[source] = indices[d]
                return operand, before
            case "tt.reshape":
                return operand, reshaped(value.type.shape, indices, operand.type.shape)
            case "tt.split":
                return operand, [*indices, constant_index(value.index)]
        return None

    def order(self, op: Op) -> list[int]:
        """The dimensions of `tt.trans`'s operand in the order of its result."""
        return [int(d) for d in groups_of(r"order = array<i32: ([^>]*)>", op.text)[0].split(",")]

    def level(self, nest: Nest, value: Value, indices: list[Index]) -> int:
        """The loop level from which an element is known."""
        if not value.type.shape:
            return 0
        if value in self.array:
            return max((index.level for index in indices), default=0)
        key = value, tuple(indices)
        if key not in nest.levels:
            nest.levels[key] = self._level(nest, value, indices)
        return nest.levels[key]

    def _level(self, nest: Nest, value: Value, indices: list[Index]) -> int:
        if value in self.running:
            return self.level(nest, self.running[value][0], indices)
        if value.op.name in ("tt.make_range", "tt.join"):
            return max(index.level for index in indices)
        source = self.sources(value, indices)
        if source is not None:
            return self.level(nest, *source)
        return max((self.level(nest, x, indices if x.type.shape else []) for x in value.op.operands), default=0)

    def element(self, nest: Nest, value: Value, indices: list[Index]) -> str:
        """C of one element, computed at the level from which it is known."""
        if not value.type.shape:
            return self.scalar[value]
        if value not in self.array and value not in self.running:
            source = self.sources(value, indices)
            if source is not None:
                return self.element(nest, *source)
        key = value, tuple(indices)
        if key not in nest.memo:
            text = self._element(nest, value, indices)
            level = self.level(nest, value, indices)
            nest.memo[key] = nest.named(level, kind_of(value.type.element).value, text, self.fresh("t"))
        return nest.memo[key]

    def _element(self, nest: Nest, value: Value, indices: list[Index]) -> str:
        if value in self.array:
            at = f"{self.array[value]}[{flat_index(value.type.shape, indices).text}]"
            return kind_in_array(value.type.element).loaded(at)
        if value in self.running:
            first, offset = self.running[value]
            return f"{self.element(nest, first, indices)} + {offset}"
        op = value.op
        if op.name == "tt.make_range":
            return weighted_sum([(indices[0], 1)], op.integer("start")).text
        if op.name == "arith.constant":
            return elements.constant_text(op)
        if op.name == "tt.join":
            both = [self.element(nest, x, indices[:-1]) for x in op.operands]
            which = indices[-1].text
            return both[int(which)] if which in "01" else f"{which} ? {both[1]} : {both[0]}"
        if op.name in self.element_writers:
            return self.element_writers[op.name](self, nest, op, indices)
        return elements.compute(op, [self.element(nest, x, indices if x.type.shape else []) for x in op.operands])

    # ---- arrays

    def ensure_array(self, value: Value) -> str:
        if value not in self.array:
            name = self.new_array(value.type)
            self.fill(name, value)
            self.array[value] = name
        return self.array[value]

    def fill(self, name: str, value: Value) -> None:
        """C that puts all of a tensor's elements into an array."""
        if value in self.array:
            self.out.append(f"memcpy({name}, {self.array[value]}, sizeof {name});")
            return
        nest = self.nest(value.type.shape)
        text = self.element(nest, value, nest.indices)
        nest.add(assignment(name, value.type, nest.indices, text))
        self.out += nest.text()


def assignment(name: str, kind: Type, indices: list[Index], text: str) -> str:
    """C that assigns to a scalar, or to an element of a tensor's array."""
    if not kind.shape:
        return f"{name} = {text};"
    return f"{name}[{flat_index(kind.shape, indices).text}] = {kind_in_array(kind.element).to_store(text)};"


def require_stack(kernel: Kernel) -> None:
    if kernel.stack_bytes > MAX_STACK_BYTES:
        raise NotSupportedError(
            f"{kernel.function.name}, whose tiles have {kernel.stack_bytes >> 10} KiB in one program,",
            advice=f"Choose smaller tiles: {MAX_STACK_BYTES >> 10} KiB have room.",
        )
