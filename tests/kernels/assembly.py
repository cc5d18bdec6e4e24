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
PRODUCT = r"ttng\.tc_gen5_mma %[\w#]+, %[\w#]+, (?P<accumulator>%[\w#]+).*, (?P<barrier>%[\w#]+)\[%\w+\] \{.*is_async"
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


class _Products:
    """Follows Blackwell's asynchronous products through TTGIR, in its order; loops twice, for what a turn leaves under way
    is waited for in the next turn, by another name.

    Attributes:
        under_way: For each accumulator that a product is being added to, the barrier at which that product arrives; in
            the order in which they began.
        early_reads: Accumulators that were read meanwhile.
    """

    def __init__(self) -> None:
        self.under_way: dict[str, str] = {}
        self.early_reads: list[str] = []
        self._value_of: dict[str, str] = {}  # of a loop's arguments and results

    def follow(self, code: str) -> None:
        lines = iter(code.splitlines())
        for line in lines:
            if "scf.for " in line:
                self._follow_loop(line, _rest_of_block(line, lines))
            elif product := re.search(PRODUCT, line):
                self.under_way.pop(product["accumulator"], None)
                self.under_way[product["accumulator"]] = self._values(product["barrier"])[0]
            elif wait := re.search(r"ttng\.wait_barrier (%[\w#]+)", line):
                self._end(*self._values(wait[1]))
            elif (read := re.search(r"ttng\.tmem_load (%[\w#]+)", line)) and read[1] in self.under_way:
                self.early_reads.append(read[1])

    def _follow_loop(self, header: str, body: str) -> None:
        pairs = re.findall(r"(%\w+) = (%[\w#]+)", header.partition("iter_args")[2])
        arguments, now = [name for name, _ in pairs], self._values(" ".join(value for _, value in pairs))
        made = set(re.findall(r"^ *(%\w+)(?=(?::\d+)? = )", body, re.M))

        def aged(value: str) -> str:  # in the next turn the same names stand for other values
            return f"{value} of before" if value in made else value

        for _ in range(2):
            self._value_of.update(zip(arguments, now, strict=True))
            self.follow(body)
            *_, passed_on = ["", *(line for line in body.splitlines() if "scf.yield " in line)]
            now = [aged(value) for value in self._values(passed_on.partition(" : ")[0])]
            self.under_way = {name: aged(barrier) for name, barrier in self.under_way.items()}
        result = header.strip().partition(" = ")[0].partition(":")[0]
        self._value_of.update({f"{result}#{i}" if len(now) > 1 else result: value for i, value in enumerate(now)})

    def _end(self, barrier: str) -> None:
        """The product that arrives at the barrier has ended, and so have those that began before it."""
        names = list(self.under_way)
        arrived = [i for i, name in enumerate(names) if self.under_way[name] == barrier]
        for name in names[: max(arrived, default=-1) + 1]:
            del self.under_way[name]

    def _values(self, names: str) -> list[str]:
        return [self._value_of.get(name, name) for name in re.findall(r"%[\w#]+", names)]


def early_reads(ttgir: str) -> list[str]:
    """Accumulators that are read while a product is being added to them: a fault of Triton 3.7.1 on Blackwell, where two
    `tl.dot` in one loop add to the same accumulator (triton#10821)."""
    products = _Products()
    products.follow(ttgir)
    return products.early_reads


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
