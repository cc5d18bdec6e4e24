"""tl.sum, tl.max and every other tl.reduce, and scans.

The order in which elements are combined depends on the shapes and on the machine's vectors, never on threads: one
thread has the whole tile. Sums, products and extremes run in vector code: along the innermost
dimension by `omp simd`, along another one as rows that are combined with each other. Anything else goes element by
element. Partial sums of fp16 and bf16 are fp32, rounded once.
"""

from triton_on_cpu.elements import KINDS, kind_in_array, kind_of
from triton_on_cpu.kernel import Kernel, assignment
from triton_on_cpu.nest import Index, Nest, flat_index, weighted_sum
from triton_on_cpu.ttir import Op, Type, Value

# The region's one operation: (what a reduction starts with, OpenMP's name, one step). LEAST, GREATEST: of the type.
FOLDS = {
    "addf": ("0", "+", "{a} + {b}"),
    "mulf": ("1", "*", "{a} * {b}"),
    "addi": ("0", "+", "{a} + {b}"),
    "maxsi": ("LEAST", "max", "{b} > {a} ? {b} : {a}"),
    "minsi": ("GREATEST", "min", "{b} < {a} ? {b} : {a}"),
    "maxnumf": ("-INFINITY", "max", "{b} > {a} ? {b} : {a}"),
    "minnumf": ("INFINITY", "min", "{b} < {a} ? {b} : {a}"),
    "maximumf": ("-INFINITY", "max", "{b} > {a} ? {b} : {a}"),
    "minimumf": ("INFINITY", "min", "{b} < {a} ? {b} : {a}"),
}
# Such extremes of floats step over NaN. Beside them is noted whether there was a number, or a NaN: (note, answer).
NAN_RULES = {
    "numf": ("{note} |= {x} == {x};", "{note} ? {total} : NAN"),  # NaN only if there is nothing else
    "imumf": ("{note} |= {x} != {x};", "{note} ? NAN : {total}"),  # NaN if there is one
}


def reduce(kernel: Kernel, op: Op) -> None:
    source, axis = op.operands[0], op.integer("axis")
    name = _fold_of(op)
    if name is None:
        _combine_in_order(kernel, op, axis, is_scan=False)
        return
    nest = kernel.nest(source.type.shape)
    kernel.declare(op.result)
    if source.type.shape[axis] == 1:
        nest.add(_answer(kernel, op.result, nest, axis, kernel.element(nest, source, nest.indices)))
        kernel.out += nest.text()
    elif nest.indices[axis].text == nest.inner:
        _reduce_rows(kernel, op, nest, axis, name)
    else:
        _combine_rows(kernel, op, nest, axis, name)


def _fold_of(op: Op) -> str | None:
    """The name of the one operation that combines two elements, if it is a known one."""
    steps, arguments = op.regions[0].ops[:-1], op.regions[0].arguments
    if len(steps) != 1 or set(steps[0].operands) != set(arguments):
        return None
    name = steps[0].name.removeprefix("arith.")
    return name if name in FOLDS and op.operands[0].type.element != "i1" else None


def _total_type(element: str, name: str) -> str:
    """Sums of integers wrap around, which C defines for unsigned ones."""
    return KINDS[element].unsigned if name == "addi" else KINDS[element].value


def _start(name: str, element: str) -> str:
    bits = KINDS[element].bits
    return {"LEAST": f"INT{bits}_MIN", "GREATEST": f"INT{bits}_MAX"}.get(FOLDS[name][0], FOLDS[name][0])


def _finished(element: str, text: str) -> str:
    return f"{KINDS[element].round}({text})"


def _kept(nest: Nest, axis: int) -> list[Index]:
    """The indices of a result: the reduced dimension is left out."""
    return [index for d, index in enumerate(nest.indices) if d != axis]


def _answer(kernel: Kernel, value: Value, nest: Nest, axis: int, text: str) -> str:
    name = kernel.array[value] if value.type.shape else kernel.scalar[value]
    return assignment(name, value.type, _kept(nest, axis), text)


def _reduce_rows(kernel: Kernel, op: Op, nest: Nest, axis: int, name: str) -> None:
    """Along the innermost dimension: a vector of partial results, combined at the row's end."""
    element = op.operands[0].type.element
    _, sign, step = FOLDS[name]
    x, total, note = kernel.fresh("x"), kernel.fresh("r"), kernel.fresh("n")
    text = kernel.element(nest, op.operands[0], nest.indices)
    row, after = nest.lines[nest.row_level], nest.after[nest.row_level]
    row.append(f"{_total_type(element, name)} {total} = {_start(name, element)};")
    nest.add(f"const {_total_type(element, name)} {x} = {text};")
    nest.add(f"{total} = {step.format(a=total, b=x)};")
    nest.pragma = f"SIMD_{'EXTREME' if sign in ('max', 'min') else 'FOLD'}({sign}:{total})"
    answer = total
    if name[3:] in NAN_RULES:
        notes, answer = (text.format(note=note, x=x, total=total) for text in NAN_RULES[name[3:]])
        row.append(f"int {note} = 0;")
        nest.add(notes)
        nest.pragma = f"SIMD_EXTREME({sign}:{total}, {note})"
    after.append(_answer(kernel, op.result, nest, axis, _finished(element, answer)))
    kernel.out += nest.text()


def _combine_rows(kernel: Kernel, op: Op, nest: Nest, axis: int, name: str) -> None:
    """Along another dimension: each row is combined with a row of results."""
    element, result = op.operands[0].type.element, op.result
    totals = kernel.new_array(Type(result.type.shape, "f32")) if KINDS[element].round else kernel.array[result]
    target = f"{totals}[{flat_index(result.type.shape, _kept(nest, axis)).text}]"
    text = kernel.element(nest, op.operands[0], nest.indices)
    start, combined = _start(name, element), FOLDS[name][2].format(a=target, b=text)
    if name[3:] in NAN_RULES:
        double = "_f64" if element == "f64" else ""
        start, combined = "NAN" if name[3:] == "numf" else start, f"{name}{double}({target}, {text})"
    elif name == "addi":
        combined = f"({KINDS[element].unsigned}){target} + ({KINDS[element].unsigned}){text}"
    every = f"for (int i = 0; i < {result.type.numel}; i++)"
    kernel.out.append(f"{every} {totals}[i] = {start};")
    nest.add(f"{target} = {combined};")
    kernel.out += nest.text()
    if KINDS[element].round:
        rounded = kind_in_array(element).to_store(_finished(element, f"{totals}[i]"))
        kernel.out.append(f"{every} {kernel.array[result]}[i] = {rounded};")


def _combine_in_order(kernel: Kernel, op: Op, axis: int, is_scan: bool) -> None:
    """Any combination of any number of tensors, one element after another."""
    nest = kernel.nest(op.operands[0].type.shape, axis)
    nest.pragma = ""
    counter = nest.indices[axis].text
    if op.integer("reverse"):
        nest.indices[axis] = weighted_sum([(nest.indices[axis], -1)], nest.shape[axis] - 1)
    for result in op.results:
        kernel.declare(result)
    totals = [kernel.fresh("r") for _ in op.results]
    for total, operand in zip(totals, op.operands, strict=True):
        nest.lines[nest.row_level].append(f"{kind_of(operand.type.element).value} {total};")
    texts = [kernel.element(nest, x, nest.indices) for x in op.operands]
    first = " ".join(f"{total} = {text};" for total, text in zip(totals, texts, strict=True))
    later = _combination(kernel, op, totals, texts)
    nest.add(f"if ({counter} == 0) {{ {first} }} else {{ {later} }}")
    for result, total in zip(op.results, totals, strict=True):
        if is_scan:
            nest.add(assignment(kernel.array[result], result.type, nest.indices, total))
        else:
            nest.after[nest.row_level].append(_answer(kernel, result, nest, axis, total))
    kernel.out += nest.text()


def _combination(kernel: Kernel, op: Op, totals: list[str], texts: list[str]) -> str:
    """C of the region: from totals and an element to new totals."""
    region = op.regions[0]
    kernel.scalar.update(zip(region.arguments, totals + texts, strict=True))
    before, kernel.out = kernel.out, []
    for step in region.ops[:-1]:
        if step.regions:
            raise step.unsupported("Use tl.where.", "if, for or while in a function that combines two elements")
        kernel.compute_scalars(step)
    lines, kernel.out = kernel.out, before
    answers = [kernel.scalar[value] for value in region.ops[-1].operands]
    new = [
        f"{kind_of(v.type.element).value} const {t}_new = {a};"
        for v, t, a in zip(region.ops[-1].operands, totals, answers, strict=True)
    ]
    return " ".join([*lines, *new, *(f"{total} = {total}_new;" for total in totals)])


def scan(kernel: Kernel, op: Op) -> None:
    _combine_in_order(kernel, op, op.integer("axis"), is_scan=True)


EMITTERS = {"tt.reduce": reduce, "tt.scan": scan}
