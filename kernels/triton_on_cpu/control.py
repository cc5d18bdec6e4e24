"""Loops, branches and carried values: scf's for, while and if, and cf's jumps of an early return.

A carried scalar is a variable, a carried tensor an array, written where the region yields. A tensor that a loop only
moves by a scalar (`ptrs += BLOCK * stride`) has no array: it is its first value plus an offset.
"""

from typing import Any

from triton_on_cpu import elements
from triton_on_cpu.elements import kind_of
from triton_on_cpu.kernel import Kernel
from triton_on_cpu.plan import SHAPES
from triton_on_cpu.ttir import Block, Op, Value


def emit_region(kernel: Kernel, *blocks: Block) -> None:
    """Blocks in braces: their arrays are not known outside."""
    known = dict(kernel.array)
    for block in blocks:
        emit_block(kernel, block)
    kernel.array = {value: name for value, name in kernel.array.items() if value in known}


def emit_block(kernel: Kernel, block: Block) -> None:
    for op in block.ops:
        kernel.emit(kernel, op)


# ---- assignment


def assign(kernel: Kernel, targets: list[Value], values: list[Value], is_first: bool = False) -> None:
    """All targets get their values at once; `is_first`: no value depends on a target."""
    pairs = [(t, v) for t, v in zip(targets, values, strict=True) if t not in kernel.running]
    later = []
    for target, value in pairs:
        name = kernel.array[target] if target.type.shape else kernel.scalar[target]
        if not target.type.shape:
            text = kernel.scalar[value]
            if not is_first and len(pairs) > 1:
                later.append(f"{name} = {name}_next;")
                text, name = text, f"{kind_of(target.type.element).value} const {name}_next"
            kernel.out.append(f"{name} = {text};")
        elif kernel.array.get(value) != name:
            if is_first or _may_overwrite(kernel, target, value, pairs):
                kernel.fill(name, value)
                continue
            if value in kernel.array and value not in targets:
                source = kernel.array[value]
            else:
                source = kernel.new_array(target.type)
                kernel.fill(source, value)
            later.append(f"memcpy({name}, {source}, sizeof {name});")
    kernel.out += later


def _may_overwrite(kernel: Kernel, target: Value, value: Value, pairs: list[tuple[Value, Value]]) -> bool:
    """Whether a value may be computed into its target's array: it reads no other element, other values read none."""
    if any(other is not value and target in arrays_read(kernel, other) for _, other in pairs):
        return False
    read = arrays_read(kernel, value)
    return read.get(target, True) and not any(t is not target and t in read for t, _ in pairs)


def arrays_read(kernel: Kernel, value: Value) -> dict[Value, bool]:
    """The arrays that a tensor's expression reads: {value: whether element i reads nothing but element i}."""
    found: dict[Value, bool] = {}
    seen, unseen = set(), [(value, True)]
    while unseen:
        value, same = unseen.pop()
        if (value, same) in seen or not value.type.shape or value in kernel.running:
            continue
        seen.add((value, same))
        if value in kernel.array:
            found[value] = found.get(value, True) and same
        else:
            keeps = value.op.name not in SHAPES and value.op.name != "tt.load"
            unseen += [(operand, same and keeps) for operand in value.op.operands]
    return found


# ---- structured


def emit_for(kernel: Kernel, op: Op) -> None:
    body = op.regions[0]
    low, high, step = (kernel.scalar[x] for x in op.operands[:3])
    counter, *arguments = body.arguments
    initials = op.operands[3:]
    yields = body.ops[-1].operands if initials else []  # MLIR leaves out a yield of nothing
    for argument, initial, value in zip(arguments, initials, yields, strict=True):
        if argument.type.shape and step_of(argument, value) is not None:
            _start_running(kernel, argument, initial)
        else:
            kernel.declare(argument)
    assign(kernel, arguments, initials, is_first=True)
    kind, i = kind_of(counter.type.element), kernel.fresh("k")
    cast = f"({kind.unsigned})" if op.text.startswith("scf.for unsigned") else ""
    kernel.scalar[counter] = name = kernel.fresh("k")
    # The counter has 64 bits: it cannot run past the bound and wrap around.
    kernel.out.append(f"for (int64_t {i} = {cast}{low}; {i} < {cast}{high}; {i} += {cast}{step}) {{")
    kernel.out.append(f"const {kind.value} {name} = ({kind.value}){i};")
    _poll(kernel, op)
    emit_region(kernel, body)
    kernel.out.append("}")
    for result, argument in zip(op.results, arguments, strict=True):
        names: tuple[dict[Value, Any], ...] = (kernel.array, kernel.scalar, kernel.running)
        for known in names:
            if argument in known:
                known[result] = known[argument]


def _poll(kernel: Kernel, loop: Op) -> None:
    if kernel.checked:
        kernel.out.append(f"if (STOPPED) LEAVE_LOOP({kernel.site(loop, 'loop')})")


def step_of(argument: Value, value: Value) -> Value | None:
    """The scalar, splat, that a loop adds to a carried tensor in each pass; None if it does anything else."""
    op = value.op
    if op.name not in ("tt.addptr", "arith.addi"):
        return None
    for mine, step in (op.operands, op.operands[::-1]):
        if mine is argument and not step.type.is_pointer:
            is_number = step.op.name == "arith.constant" and "dense<" in step.op.text
            if step.op.name == "tt.splat" or is_number:
                return step
    return None


def _start_running(kernel: Kernel, argument: Value, initial: Value) -> None:
    offset = kernel.fresh("o")
    kernel.out.append(f"int64_t {offset} = 0;")
    is_cheap = initial in kernel.running or initial.type.is_pointer or kernel.plan.is_affine(initial)
    if not is_cheap:
        kernel.ensure_array(initial)
    kernel.running[argument] = initial, offset


def emit_yield(kernel: Kernel, op: Op) -> None:
    owner = op.block.parent
    if owner.name == "scf.if":
        assign(kernel, owner.results, op.operands, is_first=True)
    elif owner.name == "scf.while":
        assign(kernel, owner.regions[0].arguments, op.operands)
    else:
        arguments = owner.regions[0].arguments[1:]
        assign(kernel, arguments, op.operands)
        for argument, value in zip(arguments, op.operands, strict=True):
            if argument in kernel.running:
                step = step_of(argument, value) or value
                is_number = step.op.name == "arith.constant"
                text = elements.constant_text(step.op) if is_number else kernel.scalar[step.op.operands[0]]
                kernel.out.append(f"{kernel.running[argument][1]} += {text};")


def emit_if(kernel: Kernel, op: Op) -> None:
    for result in op.results:
        kernel.declare(result)
    kernel.out.append(f"if ({kernel.scalar[op.operands[0]]}) {{")
    emit_region(kernel, op.regions[0])
    if len(op.regions) > 1:
        kernel.out.append("} else {")
        emit_region(kernel, op.regions[1])
    kernel.out.append("}")


def emit_while(kernel: Kernel, op: Op) -> None:
    """The condition's region leaves the loop in its middle, by `scf.condition`."""
    before, after = op.regions
    for value in (*before.arguments, *after.arguments, *op.results):
        kernel.declare(value)
    assign(kernel, before.arguments, op.operands, is_first=True)
    kernel.out.append("for (;;) {")
    _poll(kernel, op)
    emit_region(kernel, before, after)
    kernel.out.append("}")


def emit_condition(kernel: Kernel, op: Op) -> None:
    owner = op.block.parent
    condition, *values = op.operands
    kernel.out.append(f"if (!{kernel.scalar[condition]}) {{")
    assign(kernel, owner.results, values, is_first=True)
    kernel.out.append("break; }")
    assign(kernel, owner.regions[1].arguments, values, is_first=True)


# ---- jumps


def emit_jump(kernel: Kernel, op: Op) -> None:
    _go_to(kernel, *op.successors[0])


def emit_branch(kernel: Kernel, op: Op) -> None:
    kernel.out.append(f"if ({kernel.scalar[op.operands[0]]}) {{")
    _go_to(kernel, *op.successors[0])
    kernel.out.append("} else {")
    _go_to(kernel, *op.successors[1])
    kernel.out.append("}")


def _go_to(kernel: Kernel, label: str, values: list[Value]) -> None:
    block = next(block for block in kernel.function.blocks if block.label == label)
    assign(kernel, block.arguments, values)
    kernel.out.append(f"goto {label};")


def emit_return(kernel: Kernel, op: Op) -> None:
    kernel.out.append("return;")


EMITTERS = {
    "scf.for": emit_for,
    "scf.while": emit_while,
    "scf.if": emit_if,
    "scf.yield": emit_yield,
    "scf.condition": emit_condition,
    "cf.br": emit_jump,
    "cf.cond_br": emit_branch,
    "tt.return": emit_return,
}
