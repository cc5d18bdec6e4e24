"""tl.dot: products.h multiplies arrays of floats by arrays, or by a tensor as it lies in memory.

Sums are fp32 (int32 of integers), added to the accumulator in the order of k. bf16 is multiplied in pairs of neighbours
in k, where the processor has instructions for it; fp8 and fp16 are widened, exactly. TF32, where a kernel allows it, is
not used.

The right operand of a load without a mask is not copied, if it lies in memory as rows or columns of fp32 or bf16, or as
bf16 with neighbours in k side by side.
"""

import math

from triton_on_cpu import memory
from triton_on_cpu.addresses import address_of
from triton_on_cpu.elements import FP8
from triton_on_cpu.kernel import Kernel
from triton_on_cpu.ttir import Op, Type, Value

FUNCTIONS = {"f32": "product", "i32": "product_i32"}  # by the elements of the sums
VECTOR = 16  # columns that are multiplied at once
Steps = list[tuple[int, int | str]]  # of one dimension: (size, elements from one to the next), the outermost first


def dot(kernel: Kernel, op: Op) -> None:
    left, right, start = op.operands
    result = op.result
    element = result.type.element
    if element not in FUNCTIONS or len(result.type.shape) != 2:
        what = f"tl.dot of {len(result.type.shape)} dimensions into {element}"
        raise op.unsupported("Multiply matrices, and accumulate in fp32 or int32.", what)
    (m, n), k = result.type.shape, left.type.shape[1]
    name = kernel.array[result] = _accumulator(kernel, op, start)
    function = FUNCTIONS[element]
    if function == "product" and n % VECTOR:
        function = "narrow_product"
    elif left.type.element == right.type.element == "bf16" and k % 2 == 0:
        function = "product_bf16"
        kernel.tile_rows = min(kernel.tile_rows, m)
    a = _operand(kernel, left, function)
    function, b, stride = _right_operand(kernel, right, function)
    kernel.out.append(f"{function}({m}, {n}, {k}, {a}, {b}, {stride}, {name});")


def _accumulator(kernel: Kernel, op: Op, start: Value) -> str:
    """The array to which the product is added: the start's own, if a loop carries it from product to product."""
    block, is_carried = op.block, False
    if start in kernel.array and start.uses == [op] and start in block.arguments and block.parent.name == "scf.for":
        yielded = block.ops[-1].operands
        is_carried = [v is op.result for v in yielded] == [a is start for a in block.arguments[1:]]
    if is_carried:
        return kernel.array[start]
    name = kernel.new_array(op.result.type)
    kernel.fill(name, start)
    return name


def _operand(kernel: Kernel, value: Value, function: str) -> str:
    name = kernel.ensure_array(value)
    element = value.type.element
    if element not in FP8 and (element != "bf16" or function == "product_bf16"):
        return name
    wide = kernel.new_array(Type(value.type.shape, "f32"))
    widen = f"{FP8.get(element, element)}_to_f32"
    kernel.out.append(f"for (int i = 0; i < {value.type.numel}; i++) {wide}[i] = {widen}({name}[i]);")
    return wide


def _right_operand(kernel: Kernel, value: Value, function: str) -> tuple[str, str, str | int]:
    """(function of products.h, array or pointer, elements from row to row)."""
    k, n = value.type.shape
    source = kernel.plan.source_of_product(value)
    if source.op.name == "tt.load" and source not in kernel.array:
        if found := _in_memory(kernel, value):
            return found
        kernel.plan.in_array.add(source)
        memory.load(kernel, source.op)
    if value.op.name == "tt.trans" and value not in kernel.array:
        # as it lies, not turned first
        return f"{function}_transposed", _operand(kernel, value.op.operands[0], function), k
    return function, _operand(kernel, value, function), n


def _in_memory(kernel: Kernel, value: Value) -> tuple[str, str, str | int] | None:
    """As `_right_operand`, without a copy; None if the tensor needs one."""
    found = None if value.type.shape[1] % VECTOR else _laid_out(kernel, value)
    if found is None:
        return None
    base, dimensions = found
    match value.type.element, *map(_joined, dimensions):
        case "f32", [(_, stride)], [(_, 1)]:
            return "product_in_memory", base, stride
        case "f32", [(_, 1)], [(_, stride)]:
            return "product_transposed", base, stride
        case "bf16", [(_, stride)], [(_, 1)]:
            return "product_bf16", base, stride
        case "bf16", [(_, 1)], [(_, stride)] if isinstance(stride, int) and stride % 2 == 0:
            return "product_bf16_transposed", base, stride
        case "bf16", [(_, stride), (2, 1)], [(_, 2)]:
            return "product_of_pairs", f"(const word *)({base})", f"({stride}) / 2"
    return None


def _laid_out(kernel: Kernel, value: Value) -> tuple[str, list[Steps]] | None:
    """(address of the first element, steps of each dimension) of a load that is turned or reshaped; None if a step
    is not always the same."""
    op = value.op
    if op.name == "tt.load":
        nest = kernel.nest(value.type.shape)
        nest.factored = min(1, nest.depth)
        address = address_of(kernel, nest, op.operands[0], nest.indices)
        kernel.out += nest.lines[0]
        steps = [[(size, address.steps.get(i.text, 0))] for size, i in zip(nest.shape, nest.indices, strict=True)]
        return None if address.step is None else (address.base, steps)
    found = _laid_out(kernel, op.operands[0])
    if found is None:
        return None
    base, steps = found
    if op.name == "tt.trans":
        return base, [steps[d] for d in kernel.order(op)]
    return base, _regrouped([step for dimension in steps for step in dimension], value.type.shape)


def _regrouped(steps: Steps, shape: tuple[int, ...]) -> list[Steps]:
    """The steps of a reshaped tensor, from the steps that run through all of its elements. Sizes are powers of two."""
    answer: list[Steps] = []
    steps = list(steps)
    for size in reversed(shape):
        own: Steps = []
        while math.prod(count for count, _ in own) < size:
            count, step = steps.pop()
            taken = min(count, size // math.prod(n for n, _ in own))
            own.insert(0, (taken, step))
            if taken < count:
                steps.append((count // taken, step * taken if isinstance(step, int) else f"({step}) * {taken}"))
        answer.insert(0, own)
    return answer


def _joined(steps: Steps) -> Steps:
    """Without steps that merely go on: 4 steps of 2 elements and 2 of 1 are 8 of 1."""
    answer: Steps = []
    for count, step in steps:
        if answer and isinstance(step, int) and answer[-1][1] == count * step:
            answer[-1] = answer[-1][0] * count, step
        elif count > 1:
            answer.append((count, step))
    return answer


EMITTERS = {"tt.dot": dot}
