"""TTIR -> C: the compiler's entry.

ttir.py        text -> operations
plan.py        which tensors are arrays, which are computed where they are used
kernel.py      the C written so far: names, elements of tensors, addresses      (nest.py: loops, indices)
elements.py    one element of an elementwise operation      (numbers.h)
memory.py      loads, stores, atomics, masks, checks        (access.h)
products.py    tl.dot                                       (products.h)
reductions.py  reductions, scans, gather
control.py     loops and branches
"""

from dataclasses import dataclass

from triton_on_cpu import control, memory, products, reductions, ttir
from triton_on_cpu.elements import kind_of
from triton_on_cpu.kernel import Kernel, Site, require_stack
from triton_on_cpu.ttir import NotSupportedError, Op

IGNORED = ("ttg.barrier", "gpu.barrier", "llvm.intr.assume")  # a tile is one thread's: barriers do nothing
NOT_SUPPORTED = {
    "tt.histogram": "Count with tl.sum(bins[:, None] == x[None, :], axis=1).",
    "tt.cat": "Use tl.join, or two stores.",
    "tt.dot_scaled": "Multiply by the scales and use tl.dot.",
    "tt.print": "Print in the interpreter: set TRITON_INTERPRET=1 before Python starts; in this course, as lab 2 says.",
    "tt.call": "Let Triton inline the function (no noinline=True).",
    "tt.descriptor_load": "Load through pointers.",
    "tt.descriptor_store": "Store through pointers.",
}


@dataclass(frozen=True)
class Argument:
    """An argument of a compiled kernel, in the order of `args` in runtime.h."""

    name: str
    type: str  # as MLIR names it: 'i32', 'f32', 'ptr<bf16>', ...
    is_pointer: bool


@dataclass(frozen=True)
class Generated:
    """A kernel in C. Compile `c_source` with this folder on the include path (`-I`): it includes its headers by name.

    `headers` are the files that it includes, for a cache's key.
    """

    name: str
    c_source: str
    arguments: tuple[Argument, ...]
    sites: tuple[Site, ...]
    stack_bytes: int
    checked: bool
    headers: tuple[str, ...] = ("runtime.h", "numbers.h", "access.h", "products.h")


def generate(ttir_text: str, checked: bool = False) -> Generated:
    """The C of a kernel, given as Triton prints its TTIR (`str(module)`, with locations).

    Args:
        ttir_text: After inlining, canonicalization and CSE; the rewrite of block pointers and descriptors done.
        checked: Verify each access against `launch.extents`, and let every loop end when `*launch.stop` is set.

    Raises:
        NotSupportedError: An operation that has no translation. Its message names the operation, the kernel's file and
            line, and what to do instead (`.operation`, `.file`, `.line`, `.advice`).
    """
    function = ttir.parse(ttir_text)
    kernel = Kernel(function, checked, emit, {"tt.load": memory.load_element})
    arguments = tuple(Argument(a.name, a.type.element, a.type.is_pointer) for a in function.arguments)
    write(kernel)
    body = "\n".join(kernel.out)
    require_stack(kernel)
    source = TEMPLATE.format(
        define="#define CHECKED 1" if checked else "", name=function.name, body=body, stack_bytes=kernel.stack_bytes
    )
    return Generated(function.name, source, arguments, tuple(kernel.sites), kernel.stack_bytes, checked)


TEMPLATE = """/* {name}, compiled from Triton's TTIR */
{define}
#include "runtime.h"
#include "numbers.h"
#include "access.h"
#include "products.h"

static void run_program(const launch *l, const void *const *args, const int32_t *program) {{
{body}
}}

void run_programs(const launch *l, const void *const *args, int32_t first, int32_t last) {{
  for (int32_t p = first; p < last && !STOPPED; p++) {{
    const int32_t program[3] = {{p % l->grid[0], p / l->grid[0] % l->grid[1], p / l->grid[0] / l->grid[1]}};
    run_program(l, args, program);
  }}
}}
const int64_t kernel_stack_bytes = {stack_bytes};
const int32_t kernel_abi = RUNTIME_ABI;
"""


def write(kernel: Kernel) -> None:
    """The body of `run_program`: the arguments' values, then block after block."""
    for i, argument in enumerate(kernel.function.arguments):
        kind = kind_of(argument.type.element)
        kernel.out.append(f"{kind.value} const arg{i} = {kind.load}(*({kind.stored} const *)args[{i}]);")
        kernel.scalar[argument] = f"arg{i}"
    for block in kernel.function.blocks[1:]:
        for value in block.arguments:
            kernel.declare(value)
    for block in kernel.function.blocks:
        if block.label != "entry":
            kernel.out.append(f"{block.label}: ;")
        control.emit_block(kernel, block)


def emit(kernel: Kernel, op: Op) -> None:
    """An operation where it stands. Tensors are computed where they are used, unless the plan gives them an array."""
    for topic in (memory, products, reductions, control):
        if op.name in topic.EMITTERS:
            topic.EMITTERS[op.name](kernel, op)
            return
    if op.name in NOT_SUPPORTED:
        raise op.unsupported(NOT_SUPPORTED[op.name])
    if op.name == "tt.assert":
        _assert(kernel, op)
    elif op.name == "tt.unsplat":
        nest = kernel.nest(op.operands[0].type.shape)
        text = kernel.element(nest, op.operands[0], nest.indices)
        kernel.out += nest.lines[0]
        kernel.set_scalar(op.result, text)
    elif op.name not in IGNORED:
        if not op.results:
            raise op.unsupported("Use the interpreter (TRITON_INTERPRET=1).")
        if not op.result.type.shape:
            kernel.compute_scalars(op)
        for value in op.results:
            if value in kernel.plan.in_array:
                kernel.ensure_array(value)


def _assert(kernel: Kernel, op: Op) -> None:
    """tl.device_assert, of a checked kernel: the first element that fails ends the launch."""
    if not kernel.checked:
        return
    nest = kernel.nest(op.operands[0].type.shape)
    nest.pragma = ""
    text = kernel.element(nest, op.operands[0], nest.indices)
    check = kernel.site(op, "assert", None, op.text.partition('"')[2].rpartition('"')[0])
    nest.add(f"if (!{text}) {{ report(l, args, program, {check}, 0, 1); return; }}")
    kernel.out += nest.text()


__all__ = ["Argument", "Generated", "NotSupportedError", "Site", "generate"]
