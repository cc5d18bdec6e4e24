"""Reads resources and loops from a compiled kernel's machine code: SASS, as `cuobjdump` prints it."""

import re
import subprocess
from pathlib import Path

from twophase_kernels._triton import triton

# '/*0a10*/   @!P0 BRA 0x5c0 ;' in SASS: an address, and the instruction with its predicate.
SASS_INSTRUCTION = r"/\*([0-9a-f]{4,})\*/\s+([^;]+?)\s*;"
SASS_BRANCH = r"\bBRA\b.*\b0x([0-9a-f]+)"
SASS_MATRIX = r"\b(?:HMMA|IMMA|QMMA|HGMMA|IGMMA|QGMMA|UTC\w*MMA)\b"


def sass_cuda(cubin: Path) -> str:
    """The machine code, in words."""
    return _dump("-sass", cubin)


def resources_cuda(cubin: Path) -> tuple[int, int]:
    """(registers, stack bytes) per thread; Triton kernels use the stack for spills alone."""
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", _dump("-res-usage", cubin)).groups()
    return int(registers), int(stack)


def _dump(what: str, cubin: Path) -> str:
    command = [triton.knobs.nvidia.cuobjdump.path, what, cubin]
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
