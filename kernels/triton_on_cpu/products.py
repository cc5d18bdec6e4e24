"""tl.dot: both operands become arrays of floats, and products.h multiplies them.

Sums are fp32 (int32 of integers), added to the accumulator in the order of k. fp8 and 16-bit operands are widened as
they are put into their arrays, exactly. TF32, where a kernel allows it, is not used.
"""

from triton_on_cpu.elements import FP8, kind_of
from triton_on_cpu.kernel import Kernel
from triton_on_cpu.ttir import Op, Type, Value

FUNCTIONS = {"f32": "product", "f16": "product", "bf16": "product", "i32": "product_i32", "f64": "product_f64"}


def dot(kernel: Kernel, op: Op) -> None:
    left, right, start = op.operands
    result = op.result
    *batch, m, n = result.type.shape
    k = left.type.shape[-1]
    element = result.type.element
    if element not in FUNCTIONS or len(batch) > 1:
        raise op.unsupported(
            "Accumulate in fp32, fp64 or int32.", f"tl.dot of {len(batch) + 2} dimensions into {element}"
        )
    name = kernel.new_array(result.type)
    kernel.fill(name, start)
    suffix = ""
    if not batch and right.op is not None and right.op.name == "tt.trans" and right not in kernel.array:
        right, suffix = right.op.operands[0], "_transposed"  # multiplied as it lies, not turned first
    a, b = _operand(kernel, left), _operand(kernel, right)
    call = f"{FUNCTIONS[element]}{suffix}({m}, {n}, {k}, {{a}}, {{b}}, {{c}});"
    if batch:
        call = call.format(a=f"{a} + i * {m * k}", b=f"{b} + i * {k * n}", c=f"{name} + i * {m * n}")
        kernel.out.append(f"for (int i = 0; i < {batch[0]}; i++) {call}")
    else:
        kernel.out.append(call.format(a=a, b=b, c=name))
    rounding = kind_of(element).round
    if rounding:
        kernel.out.append(f"for (int i = 0; i < {result.type.numel}; i++) {name}[i] = {rounding}({name}[i]);")
    kernel.array[result] = name


def _operand(kernel: Kernel, value: Value) -> str:
    name = kernel.ensure_array(value)
    element = value.type.element
    if element not in FP8:
        return name
    wide = kernel.new_array(Type(value.type.shape, "f32"))
    kernel.out.append(f"for (int i = 0; i < {value.type.numel}; i++) {wide}[i] = {FP8[element]}_to_f32({name}[i]);")
    return wide


EMITTERS = {"tt.dot": dot}
