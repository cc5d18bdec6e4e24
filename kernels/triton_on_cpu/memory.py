"""Loads, stores and atomics, their masks, and the checks of a checked kernel.

A mask is taken apart into the conditions that `&` joins. The loop in which a condition is known decides its place:

    not in the innermost loop       the row is left out
    `index < bound` and the like    a bound of the innermost loop, which then runs without any condition
    anything else                   a condition of each element

so that the innermost loop of most kernels runs over contiguous memory without conditions. A masked load without `other`
gives 0, or NaN in a checked kernel, where it is noticed if it is used; it reads nothing.
"""

import re
from dataclasses import dataclass, field

from triton_on_cpu import elements
from triton_on_cpu.addresses import Address, address_of, affine_form
from triton_on_cpu.elements import kind_of
from triton_on_cpu.kernel import Kernel, assignment
from triton_on_cpu.nest import Index, Nest
from triton_on_cpu.plan import bases
from triton_on_cpu.ttir import Op, Value

ACCESSES = {"tt.load": "load", "tt.store": "store", "tt.atomic_rmw": "atomic", "tt.atomic_cas": "atomic"}
MIRRORED = {"slt": "sgt", "sle": "sge", "sgt": "slt", "sge": "sle"}
ATOMICS = {"f32": ("fadd", "exch"), **dict.fromkeys(("i32", "i64"), ("add", "max", "min", "exch", "cas"))}


@dataclass
class Mask:
    """A mask in a nest: conditions of rows, bounds of the innermost loop, and conditions of elements."""

    rows: list[tuple[str, int]] = field(default_factory=list)  # (condition, level)
    lows: list[str] = field(default_factory=list)
    highs: list[str] = field(default_factory=list)
    elements: list[str] = field(default_factory=list)
    ensured: set = field(default_factory=set)  # rows' conditions and bounds, by value and indices


def split_mask(kernel: Kernel, nest: Nest, mask: Value | None, indices: list[Index]) -> Mask:
    found = Mask()
    for value, at in conditions(kernel, nest, mask, indices):
        level = kernel.level(nest, value, at)
        bound = bound_of(kernel, nest, value, at)
        if level < nest.depth or not nest.depth:
            found.rows.append((kernel.element(nest, value, at), level))
        elif bound is None:
            found.elements.append(kernel.element(nest, value, at))
            continue
        else:
            (found.lows if bound[0] == "low" else found.highs).append(bound[1])
        found.ensured.add((value, tuple(at)))
    return found


def conditions(kernel: Kernel, nest: Nest, mask: Value | None, indices: list[Index]) -> list[tuple[Value, list[Index]]]:
    """The conditions on an element that do not always hold, nor are ensured by the nest."""
    if mask is None:
        return []
    op = mask.op
    if op.name == "arith.constant" and elements.constant_text(op) == "1":
        return []
    if mask.type.shape and mask not in kernel.array:
        if op.name == "arith.andi":
            return [condition for x in op.operands for condition in conditions(kernel, nest, x, indices)]
        source = kernel.sources(mask, indices)
        if source is not None:
            return conditions(kernel, nest, *source)
    bound = bound_of(kernel, nest, mask, indices)
    holds = (mask, tuple(indices)) in nest.holds or (bound is not None and bound[0] == "always")
    return [] if holds else [(mask, indices)]


def bound_of(kernel: Kernel, nest: Nest, value: Value, indices: list[Index]) -> tuple[str, str] | None:
    """A comparison of the innermost index: ('low', first index within), ('high', first beyond it) or ('always', '')."""
    op = value.op
    if value in kernel.array or op.name != "arith.cmpi" or op.keyword not in MIRRORED:
        return None
    if not kernel.level(nest, value, indices) == nest.depth > 0:
        return None
    a, b = (affine_form(kernel, nest, x, indices) for x in op.operands)
    if a is None or b is None or max(a.level, b.level) >= nest.depth:
        return None
    predicate, index = op.keyword, {nest.inner: 1}
    if b.factors == index:
        a, b, predicate = b, a, MIRRORED[predicate]
    if a.factors != index or b.factors:
        return None
    bound = f"((int64_t){b.rest} - (int64_t){a.rest}{' + 1' if predicate in ('sle', 'sgt') else ''})"
    is_high = predicate in ("slt", "sle")
    if re.fullmatch(r"[\d() +*-]*", digits := bound.replace("(int64_t)", "")):
        number = eval(digits)  # digits and signs alone
        if number >= nest.size if is_high else number <= 0:
            return "always", ""
        bound = str(number)
    return "high" if is_high else "low", bound


def bound_rows(kernel: Kernel, nest: Nest, mask: Mask, with_rows: bool) -> None:
    """Lines that set the innermost loop's bounds; `with_rows`: to none where a row's condition does not hold."""
    low, high = kernel.fresh("low"), kernel.fresh("high")
    lines = nest.lines[nest.row_level]
    lines.append(f"int {low} = 0, {high} = {nest.size};")
    lines += [f"{low} = MAX({low}, CLAMP({text}, 0, {nest.size}));" for text in mask.lows]
    lines += [f"{high} = MIN({high}, CLAMP({text}, 0, {nest.size}));" for text in mask.highs]
    kept = " && ".join(text for text, _ in mask.rows) if with_rows else ""
    lines.append(f"{high} = {f'{kept} && ' if kept else ''}{high} > {low} ? {high} : {low};")
    nest.low, nest.high = low, high


def verified(
    kernel: Kernel, nest: Nest, op: Op, address: Address, needed: list[str], by_row: bool = False
) -> list[str]:
    """The conditions on an element, and (of a checked kernel) the verification of the access `op`.

    `by_row`: A row without conditions, whose elements are a fixed step apart, is verified as a whole, and a bad one
    left out.
    """
    if not kernel.checked:
        return needed
    pointer = op.operands[0]
    argument, num_bytes = kernel.plan.argument_of(pointer), kind_of(pointer.type.pointee).num_bytes
    access = f"{argument}, {kernel.site(op, ACCESSES[op.name], argument)}, {num_bytes}"
    if by_row and not needed and nest.depth and isinstance(address.step, int):
        row = f"ROW_WITHIN({address.base}, {nest.low}, {nest.high}, {address.step}, {access})"
        nest.lines[nest.row_level].append(f"if ({nest.high} > {nest.low} && !{row}) {nest.high} = {nest.low};")
        return []
    return [*needed, f"WITHIN({address.base} + {address.at}, {access})"]


def contiguous_dimension(kernel: Kernel, pointer: Value) -> int | None:
    """The dimension along which neighbours are neighbours in memory; None: unknown, or there is one at most."""
    shape = pointer.type.shape
    for d in reversed(range(len(shape))):
        if shape[d] > 1 and len(shape) > 1:
            trial = kernel.nest(shape, d)
            if address_of(kernel, trial, pointer, trial.indices).step == 1:
                return d
    return None


# ---- loads


def load_element(kernel: Kernel, nest: Nest, op: Op, indices: list[Index]) -> str:
    """A load where its value is used."""
    pointer, *rest = op.operands
    element = op.result.type.element
    address = address_of(kernel, nest, pointer, indices if pointer.type.shape else [])
    of_mask = conditions(kernel, nest, rest[0] if rest else None, indices)
    needed = verified(kernel, nest, op, address, [kernel.element(nest, value, at) for value, at in of_mask])
    text = kind_of(element).loaded(f"{address.base}[{address.at}]")
    if not needed:
        return text
    other = kernel.element(nest, rest[1], indices) if len(rest) > 1 else unread(kernel, element)
    return f"({' && '.join(needed)}) ? {text} : {other}"


def unread(kernel: Kernel, element: str) -> str:
    """The value of a masked load without `other`."""
    return "NAN" if kernel.checked and kind_of(element).is_float else "0"


def load(kernel: Kernel, op: Op) -> None:
    value = op.result
    if not value.type.shape:
        nest = kernel.nest(())
        text = load_element(kernel, nest, op, [])
        kernel.out += nest.lines[0]
        kernel.set_scalar(value, text)
    elif value in kernel.plan.in_array:
        name = kernel.new_array(value.type)
        _fill_by_load(kernel, op, name)
        kernel.array[value] = name


def _fill_by_load(kernel: Kernel, op: Op, name: str) -> None:
    """A whole tile: rows within bounds, and `other` beside them."""
    pointer, *rest = op.operands
    value = op.result
    nest = kernel.nest(value.type.shape, contiguous_dimension(kernel, pointer))
    mask = split_mask(kernel, nest, rest[0] if rest else None, nest.indices)
    varies = len(rest) > 1 and nest.depth and kernel.level(nest, rest[1], nest.indices) == nest.depth
    if mask.elements or varies or not nest.depth:
        kernel.fill(name, value)
        return
    element = value.type.element
    kind = kind_of(element)
    address = address_of(kernel, nest, pointer, nest.indices)
    is_bounded = bool(mask.rows or mask.lows or mask.highs or kernel.checked)
    if is_bounded:
        bound_rows(kernel, nest, mask, with_rows=True)
    text = kind.loaded(f"{address.base}[{address.at}]")
    if needed := verified(kernel, nest, op, address, [], by_row=True):
        text = f"{needed[0]} ? {text} : 0"
    nest.add(assignment(name, value.type, nest.indices, text))
    twin = None if kernel.checked or address.step != 1 else _twin(kernel, op)
    if twin is not None:
        base, other = twin
        row = f"(const char *){other} + ((const char *){address.base} - (const char *){base})"
        nest.lines[nest.row_level].append(f"prefetch({row}, {nest.size * kind.num_bytes});")
    if is_bounded:
        other = kernel.element(nest, rest[1], nest.indices) if len(rest) > 1 else unread(kernel, element)
        fill = assignment(name, value.type, nest.indices, other)
        for low, high in (("0", nest.low), (nest.high, str(nest.size))):
            if mask.lows or kernel.checked or low != "0":
                loop = f"for (int {nest.inner} = {low}; {nest.inner} < {high}; {nest.inner}++)"
                nest.after[nest.row_level].append(f"{loop} {fill}")
    kernel.out += nest.text()


def _twin(kernel: Kernel, op: Op) -> tuple[str, str] | None:
    """(this load's first address, that of a later load in the block which reads a tile at the same offsets), such as
    the values beside these keys: its rows are asked for while this tile is computed with."""
    for later in op.block.ops[op.block.ops.index(op) + 1 :]:
        if later.name == "tt.load" and later.result.type == op.result.type:
            base, other = bases(op.operands[0], later.operands[0])
            if base in kernel.scalar and other in kernel.scalar:
                return kernel.scalar[base], kernel.scalar[other]
    return None


# ---- stores


def store(kernel: Kernel, op: Op) -> None:
    pointer, value, *rest = op.operands
    element = pointer.type.pointee
    if element.startswith("ptr<"):
        raise op.unsupported("Store offsets instead.", "storing pointers")
    shape = pointer.type.shape
    nest = kernel.nest(shape, contiguous_dimension(kernel, pointer))
    mask = split_mask(kernel, nest, rest[0] if rest else None, nest.indices)
    nest.holds = mask.ensured
    for text, level in mask.rows:
        if level == 0:
            nest.guard(text)
        else:
            nest.lines[level].append(f"if (!{text}) continue;")
    if mask.lows or mask.highs or (kernel.checked and nest.depth):
        bound_rows(kernel, nest, mask, with_rows=False)
    address = address_of(kernel, nest, pointer, nest.indices)
    needed = verified(kernel, nest, op, address, mask.elements, by_row=True)
    line = f"{address.base}[{address.at}] = {_stored(kernel, nest, element, value)};"
    nest.add(f"if ({' && '.join(needed)}) {line}" if needed else line)
    if address.step in (0, None):
        nest.pragma = ""  # several elements may meet in one place: the last one stays
    kernel.out += nest.text()


def _stored(kernel: Kernel, nest: Nest, element: str, value: Value) -> str:
    """A value in memory's form. fp16's conversion rounds anyway: it is not done twice."""
    op = value.op
    is_rounded_here = element == "f16" and op.name == "arith.truncf" and value not in kernel.array
    if is_rounded_here and op.operands[0].type.element == "f32":
        value = op.operands[0]
    return kind_of(element).to_store(kernel.element(nest, value, nest.indices))


# ---- atomics


def atomic(kernel: Kernel, op: Op) -> None:
    """tl.atomic_add and its like, and compare and swap: one element after another."""
    is_swap = op.name == "tt.atomic_cas"
    pointer, result = op.operands[0], op.result
    values, masks = (op.operands[1:], []) if is_swap else (op.operands[1:2], op.operands[2:])
    element, what = pointer.type.pointee, "cas" if is_swap else op.keyword
    if what not in ATOMICS.get(element, ()):
        raise op.unsupported("Use an fp32 or int32 tensor.", f"an atomic `{what}` on {element}")
    nest = kernel.nest(pointer.type.shape)
    nest.pragma = ""
    of_mask = conditions(kernel, nest, masks[0] if masks else None, nest.indices)
    needed = [kernel.element(nest, value, at) for value, at in of_mask]
    address = address_of(kernel, nest, pointer, nest.indices)
    texts = [kernel.element(nest, value, nest.indices) for value in values]
    needed = verified(kernel, nest, op, address, needed)
    condition = " && ".join(needed) or "1"
    call = f"atomic_{what}_{element}(&{address.base}[{address.at}], {', '.join(texts)})"
    if not result.uses:
        nest.add(f"if ({condition}) {call};")
    else:
        name = kernel.declare(result)
        nest.add(assignment(name, result.type, nest.indices, f"{condition} ? {call} : 0"))
    kernel.out += nest.text()


EMITTERS = {"tt.load": load, "tt.store": store, "tt.atomic_rmw": atomic, "tt.atomic_cas": atomic}
