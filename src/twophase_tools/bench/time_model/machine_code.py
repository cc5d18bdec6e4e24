"""What one warp asks of each pipe, from machine code (SASS): for each loop a turn of it, and once what is in no loop.

The code of both arms of a branch counts, and so do predicated instructions.
"""

import re
from collections import Counter
from dataclasses import dataclass

LANES = 32
# '/*0a10*/  @!P0 BRA 0x5c0 ;  /* 64 bits of code */ /* 64 bits, of which 41 to 44 say how many cycles the warp's next
# instruction waits */' (arXiv:1804.06826, section 2.1)
INSTRUCTION = (
    r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([^;]+?)\s*;\s*/\* 0x[0-9a-f]{16} \*/\s*/\* 0x([0-9a-f]{16}) \*/"
)
MATRIX = r"(HMMA|HGMMA|QGMMA)\.(?:(\d+)x(\d+)x(\d+)|(16)(8)(8|16)\b)"
MATRIX_PIPES = {"HMMA": "mma.sync", "HGMMA": "tensor", "QGMMA": "tensor fp8"}
FMA = ("FFMA", "FMUL", "FADD", "HFMA2", "HADD2", "HMUL2")
ISSUE_ONLY = r"U[A-Z]|BRA|BAR|BSSY|BSYNC|NOP|EXIT|WARP|DEPBAR|LDGDEPBAR|MEMBAR|FENCE|CALL|RET|R2UR|LDC|S2R|S2UR|CS2R"


@dataclass(frozen=True, slots=True)
class MachineCode:
    """straight, loops: amounts by pipe, in units of `rates.PIPES`; 'stall', cycles that the warp waits by the
    instructions' own counts; 'copies', bytes of 'l2' that are copied asynchronously. Loops: innermost, by address."""

    straight: Counter[str]
    loops: tuple[Counter[str], ...]


def read_code(sass: str) -> MachineCode:
    """Of one kernel, as `cuobjdump -sass` prints it."""
    found = [(int(place, 16), text, int(control, 16)) for place, text, control in re.findall(INSTRUCTION, sass)]
    turns = []
    for place, text, _ in found:
        target = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < place:
            turns.append(range(int(target[1], 16), place + 1))
    innermost = [a for a in turns if not any(b != a and a.start <= b.start and b.stop <= a.stop for b in turns)]
    straight: Counter[str] = Counter()
    loops: list[Counter[str]] = [Counter() for _ in innermost]
    for place, text, control in found:
        into = next((loop for turn, loop in zip(innermost, loops, strict=True) if place in turn), straight)
        into.update(amounts(text))
        into["stall"] += control >> 41 & 15
    # Copies before a loop are its first turns'; as many are predicated off in its last turns.
    straight["l2"] -= straight.pop("copies", 0) if any(loop["copies"] for loop in loops) else 0
    return MachineCode(straight, tuple(loops))


def amounts(text: str) -> Counter[str]:
    """Of one instruction, by pipe: amounts('LDS.128 R4, [R2]') == {'issue': 1, 'shared': 512}.

    Raises:
        ValueError: It moves data in a way that no production kernel does yet.
    """
    opcode = text.split()[0]
    name, _, modifiers = opcode.partition(".")
    took = Counter(issue=1)
    if matrix := re.match(MATRIX, opcode):
        kind, m, n, k = (part for part in matrix.groups() if part)
        num_warps = 1 if kind == "HMMA" else 4  # that compute it together
        took[MATRIX_PIPES[kind]] = 2 * int(m) * int(n) * int(k) // num_warps
    elif name in ("LDSM", "STSM"):
        took["shared"] = 128 * int(modifiers[-1]) if modifiers[-2:] in (".2", ".4") else 128
    elif name in ("LDS", "STS", "LDG", "STG", "LDGSTS"):
        widths = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
        num_bytes = LANES * next((widths[word] for word in modifiers.split(".") if word in widths), 4)
        took["l2" if "G" in name else "shared"] = num_bytes  # of LDGSTS, which moves through both, the slower
        took["copies"] = num_bytes if name == "LDGSTS" else 0
    elif name == "SHFL":
        took["shared"] = 4 * LANES
    elif name in ("MUFU", "I2F", "F2I"):
        took["mufu"] = LANES
    elif name == "F2FP":
        took["convert"] = 2 * LANES  # a pair each
    elif name in FMA:
        took["fma"] = LANES
    elif name == "IMAD":
        took["imad"] = LANES
    elif re.fullmatch(r"(LD|ST)L?|ATOM\w*|RED|UTMA\w*|UBLKCP", name):
        raise ValueError(f"the time model does not know what {opcode} asks of memory")
    elif not re.match(ISSUE_ONLY, name):
        took["alu"] = LANES
    return +took
