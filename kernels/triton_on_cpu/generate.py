"""TTIR -> C: the compiler's entry.

ttir.py        text -> operations
plan.py        which tensors are arrays, which are computed where they are used
kernel.py      the C written so far: names, elements of tensors      (nest.py: loops, indices)
addresses.py   where an element lies, and how far its neighbours are
elements.py    one element of an elementwise operation      (numbers.h)
memory.py      loads, stores, atomics, masks, checks        (access.h)
products.py    tl.dot                                       (products.h)
reductions.py  reductions and scans
control.py     loops and branches
"""

from dataclasses import dataclass

from triton_on_cpu import control, memory, products, reductions, ttir
from triton_on_cpu.elements import kind_of
from triton_on_cpu.kernel import Kernel, Site, require_stack
from triton_on_cpu.ttir import Op

IGNORED = ("ttg.barrier", "gpu.barrier", "llvm.intr.assume")  # a tile is one thread's: barriers do nothing
NOT_SUPPORTED = {
    "tt.histogram": "Count with tl.sum(bins[:, None] == x[None, :], axis=1).",
    "tt.cat": "Use tl.join, or two stores.",
    "tt.gather": "Load the elements through pointers.",
    "tt.dot_scaled": "Multiply by the scales and use tl.dot.",
    "tt.print": "Print in the interpreter: set TRITON_INTERPRET=1 before Python starts; in this course, as lab 2 says.",
    "tt.call": "Let Triton inline the function (no noinline=True).",
    "tt.descriptor_load": "Load through pointers.",
    "tt.descriptor_store": "Store through pointers.",
}


@dataclass(frozen=True)
class Generated:
    """A kernel in C. Compile `c_source` with this folder on the include path (`-I`)."""

    c_source: str
    arguments: tuple[str, ...]  # names, in the order of `launch.args` in runtime.h
    sites: tuple[Site, ...]


def generate(ttir_text: str, checked: bool = False) -> Generated:
    """The C of a kernel, given as Triton prints its TTIR (`str(module)`, with locations).

    Args:
        ttir_text: After inlining, canonicalization and CSE; the rewrite of block pointers and descriptors done.
        checked: Verify each access against `launch.extents`, and let every loop end when `*launch.stop` is set.

    Raises:
        NotSupportedError: An operation that has no translation; the message says where, and what to do instead.
    """
    function = ttir.parse(ttir_text)
    kernel = Kernel(function, checked, emit, {"tt.load": memory.load_element})
    write(kernel)
    require_stack(kernel)
    body = "\n".join(kernel.out)
    has_pairs = "product_bf16" in body or "product_of_pairs" in body
    switches = {"CHECKED": checked, "BF16": has_pairs, "PRODUCTS": "product" in body}
    defined = "\n".join(f"#define {switch}" for switch, is_on in switches.items() if is_on)
    defined += f"\n#define TILE_ROWS {kernel.tile_rows}" if has_pairs else ""
    source = TEMPLATE.format(switches=defined, name=function.name, body=body)
    return Generated(source, tuple(argument.name for argument in function.arguments), tuple(kernel.sites))


TEMPLATE = """/* {name}, compiled from Triton's TTIR */
{switches}
#include "runtime.h"
#include "numbers.h"
#include "access.h"
#ifdef PRODUCTS
#include "products.h"
#endif
#ifndef TILES_BEGIN
#define TILES_BEGIN
#define TILES_END
#endif

static void run_program(const launch *l, const int32_t *program) {{
{body}
}}

void run_programs(const launch *l, int32_t first, int32_t last) {{
  TILES_BEGIN
  for (int32_t p = first; p < last && !STOPPED; p++) {{
    const int32_t program[3] = {{p % l->grid[0], p / l->grid[0] % l->grid[1], p / l->grid[0] / l->grid[1]}};
    run_program(l, program);
  }}
  TILES_END
}}
"""


def write(kernel: Kernel) -> None:
    """The body of `run_program`: the arguments' values, then block after block."""
    for i, argument in enumerate(kernel.function.arguments):
        kind = kind_of(argument.type.element)
        kernel.out.append(f"{kind.value} const arg{i} = {kind.load}(*({kind.stored} const *)&l->args[{i}]);")
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
    site = kernel.site(op, "assert", message=op.text.partition('"')[2].rpartition('"')[0])
    nest.add(f"if (!{text}) {{ report(l, program, {site}, 0); return; }}")
    kernel.out += nest.text()
