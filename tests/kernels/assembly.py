"""Reads instructions and pipelining from a compiled kernel's intermediate code and assembly.

Text is searched, because no tool answers these questions for all targets. The patterns are for Triton's output alone:
TTGIR, PTX, and AMD assembly.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator

from ptx_emulator.compiled_code import matrix_loops

MATRIX_INSTRUCTIONS = {
    "wgmma": "wgmma.mma_async",
    "mma.sync": "mma.sync",
    "tcgen05": "tcgen05.mma",
    "v_mfma": "v_mfma_",
}
ASYNC_COPIES = {"cp.async": "cp.async.cg.", "tma": "cp.async.bulk.tensor"}  # of 16 bytes
VECTOR_LOADS = (
    r"ld\.global\S*\.(?:v4\.[bfsu]32|v2\.[bfsu]64|v8\.[bfsu]16|b128)"
    r"|cp\.async\.cg\."
    r"|(?:global|buffer)_load_dwordx4"
)
FLUSHES_SUBNORMALS = r"mul(?:\.rn)?\.ftz\.f32|\.amdhsa_float_denorm_mode_32 [^3]"
DOT_OPERANDS = r"tt\.dot .* : tensor<\d+x\d+x(\w+)>"
# A load of a 2-D tile in TTGIR: 'async_copy_global_to_local ... : tensor<64x128x!tt.ptr<bf16>', 'buffer_load ... :
# tensor<32x128xi8'. The operation and the tile's shape tell K and V from the tile of Q, which is loaded once.
TILE_LOAD = r"(async_copy_global_to_local|amdg\.buffer_load|tt\.load) .*: tensor<(\d+x\d+)x"
DOT = r"tt\.dot |ttng\.warp_group_dot |ttng\.tc_gen5_mma "


def kinds_in(assembly: str, patterns: dict[str, str]) -> tuple[str, ...]:
    """Those of MATRIX_INSTRUCTIONS or ASYNC_COPIES that occur."""
    return tuple(name for name, text in patterns.items() if text in assembly)


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


def loop_instructions(sass: str) -> int:
    """Instructions that a warp issues per tile of keys: of the loop with the fewest, if there are several.

    (In prefill that is the loop over tiles which need no mask, where a long chunk spends its time.) 0: no such loop.
    """
    return min(map(len, matrix_loops(sass)), default=0)


def resources_amd(assembly: str) -> tuple[int, int]:
    """(vector registers, scratch bytes) per lane, from the metadata at the end of the assembly."""

    def field(name: str) -> int:
        return int(re.search(rf"\.{name}:\s+(\d+)", assembly).group(1))

    return field("vgpr_count"), max(field("private_segment_fixed_size"), 4 * field("vgpr_spill_count"))
