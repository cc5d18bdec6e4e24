"""Reads resources, instructions and pipelining from a compiled kernel's intermediate code and assembly.

Text is searched, because no tool answers these questions for all targets. The patterns are for Triton's output alone:
TTGIR, PTX, SASS (NVIDIA's machine code, as `cuobjdump` prints it), and AMD assembly.
"""

import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from twophase_kernels._triton import triton

MATRIX_INSTRUCTIONS = {
    "wgmma": "wgmma.mma_async",
    "mma.sync": "mma.sync",
    "tcgen05": "tcgen05.mma",
    "v_mfma": "v_mfma_",
}
ASYNC_COPIES = {
    "cp.async": "cp.async.cg.",  # always 16 bytes
    "tma": "cp.async.bulk.tensor",
}
VECTOR_LOADS = (
    r"ld\.global\S*\.(?:v4\.[bfsu]32|v2\.[bfsu]64|v8\.[bfsu]16|b128)",
    r"cp\.async\.cg\.",
    r"(?:global|buffer)_load_dwordx4",
)
NARROW_LOADS = (
    r"ld\.global(?!\S*\.v\d)\S*\.[bfsu](?:8|16|32)\b",
    r"cp\.async\.ca\S* \[.*?\], \[.*?\], 0x[24]\b",
    r"(?:global|buffer)_load_(?:[us]?byte|[us]?short|dword)\b",
)
FLUSHES_SUBNORMALS = r"mul(?:\.rn)?\.ftz\.f32|\.amdhsa_float_denorm_mode_32 [^3]"
DOT_OPERANDS = r"tt\.dot .* : tensor<\d+x\d+x(\w+)>"
# A load of a 2-D tile in TTGIR: 'async_copy_global_to_local ... : tensor<64x128x!tt.ptr<bf16>', 'buffer_load ... :
# tensor<32x128xi8'. The operation and the tile's shape tell K and V from the tile of Q, which is loaded once.
TILE_LOAD = r"(async_copy_global_to_local|amdg\.buffer_load|tt\.load) .*: tensor<(\d+x\d+)x"
# '/*0a10*/   @!P0 BRA 0x5c0 ;' in SASS: an address, and the instruction with its predicate.
SASS_INSTRUCTION = r"/\*([0-9a-f]{4,})\*/\s+([^;]+?)\s*;"
SASS_BRANCH = r"\bBRA\b.*\b0x([0-9a-f]+)"
SASS_MATRIX = r"\b(?:HMMA|IMMA|QMMA|HGMMA|IGMMA|QGMMA|UTC\w*MMA)\b"
DOT = r"tt\.dot |ttng\.warp_group_dot |ttng\.tc_gen5_mma "


def matrix_instructions(assembly: str) -> tuple[str, ...]:
    return tuple(name for name, text in MATRIX_INSTRUCTIONS.items() if text in assembly)


def async_copies(assembly: str) -> tuple[str, ...]:
    return tuple(name for name, text in ASYNC_COPIES.items() if text in assembly)


def count_vector_loads(assembly: str) -> int:
    return sum(len(re.findall(pattern, assembly)) for pattern in VECTOR_LOADS)


def count_narrow_loads(assembly: str) -> int:
    return sum(len(re.findall(pattern, assembly)) for pattern in NARROW_LOADS)


def keeps_subnormals(assembly: str) -> bool:
    return re.search(FLUSHES_SUBNORMALS, assembly) is None


def dot_dtype(ttir: str) -> str | None:
    """The operand dtype of the first matrix product."""
    return next(iter(re.findall(DOT_OPERANDS, ttir)), None)


def kv_buffer_depth(ttgir: str) -> int:
    """Tiles that are loaded ahead of every loop with matrix products in it, for each tile load inside; the smallest.

    This measures the software pipeliner, whether the tiles wait in shared memory or (AMD) in registers. (Where matrix
    instructions read shared memory, wgmma and tcgen05, one more buffer holds the tile in use.) 0: the loop waits for
    each tile that it asks for, or there is no loop.
    """
    depths, ahead, lines = [], Counter(), iter(ttgir.splitlines())
    for line in lines:
        ahead.update(re.findall(TILE_LOAD, line))
        if "scf.for " not in line:
            continue
        body = _rest_of_block(line, lines)
        if re.search(DOT, body):
            in_loop = Counter(re.findall(TILE_LOAD, body))
            depths += [ahead[load] // count for load, count in in_loop.items()]
            ahead.clear()
    return min(depths, default=0)


def _rest_of_block(header: str, lines: Iterator[str]) -> str:
    """Takes `lines` up to the header's closing brace, which has the header's indentation."""
    closing = " " * (len(header) - len(header.lstrip())) + "}"
    return "\n".join(itertools.takewhile(lambda line: not line.startswith(closing), lines))


def sass_cuda(cubin: Path) -> str:
    """The machine code, in words."""
    command = [triton.knobs.nvidia.cuobjdump.path, "-sass", cubin]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def matrix_loops(sass: str) -> list[list[str]]:
    """The innermost loops that hold matrix instructions, each as its instructions in order of their addresses.

    A loop is the code between a backward branch and its target. Predicated instructions count as executed.
    """
    found = [(int(address, 16), text) for address, text in re.findall(SASS_INSTRUCTION, sass)]
    index = {address: i for i, (address, _) in enumerate(found)}
    loops = []
    for i, (address, text) in enumerate(found):
        target = re.search(SASS_BRANCH, text)
        # A branch to itself, behind the kernel's end, holds nothing.
        if target and int(target[1], 16) < address:
            loop = range(index[int(target[1], 16)], i + 1)
            if any(re.search(SASS_MATRIX, found[j][1]) for j in loop):
                loops.append(loop)
    innermost = [a for a in loops if not any(b != a and a.start <= b.start and b.stop <= a.stop for b in loops)]
    return [[found[j][1] for j in loop] for loop in innermost]


def loop_instructions(sass: str) -> int:
    """Instructions that a warp issues per tile of keys: of the loop with the fewest, if there are several.

    (In prefill that is the loop over tiles which need no mask, where a long chunk spends its time.) 0: no such loop.
    """
    return min(map(len, matrix_loops(sass)), default=0)


def resources_cuda(cubin: Path) -> tuple[int, int]:
    """(registers, stack bytes) per thread; Triton kernels use the stack for spills alone."""
    dump = subprocess.run(
        [triton.knobs.nvidia.cuobjdump.path, "-res-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", dump).groups()
    return int(registers), int(stack)


def resources_amd(assembly: str) -> tuple[int, int]:
    """(vector registers, scratch bytes) per lane, from the metadata at the end of the assembly."""

    def field(name: str) -> int:
        return int(re.search(rf"\.{name}:\s+(\d+)", assembly).group(1))

    scratch_bytes = field("private_segment_fixed_size")
    return field("vgpr_count"), max(scratch_bytes, 4 * field("vgpr_spill_count"))
