"""The parser, on what Triton writes and running programs do not show."""

import pytest

from ptx_emulator import ptx
from tests.kernels.emulator.programs import text_of


def parsed(lines):
    return ptx.parse(text_of(lines)).instructions


def test_operands():
    register, literal, address = ptx.Register, ptx.Literal, ptx.Address
    move, load, negative, wide = parsed(
        """mov.b32 %r4, 0fBF800000;
        ld.global.b32 %r1, [%rd1 + 16];
        ld.shared.b32 %r5, [global_smem+-4];
        mov.u64 %rd3, 0x10U;"""
    )[:-1]
    assert move.operands[1] == literal(0xBF800000)
    assert load.operands[1] == address(register("%rd1"), 16)
    assert negative.operands[1] == address(register("global_smem"), -4)
    assert wide.operands[1] == literal(16)


def test_source_lines():
    """The comment names the file; a .loc without one names nothing."""
    first, second, third, _ = parsed(
        ".loc 1 146 21 // attend_range.py:146:21\nmov.b32 %r1, 1;\nmov.b32 %r2, 2;\n.loc 2 3 4\nmov.b32 %r3, 3;"
    )
    assert (first.source, second.source, third.source) == ("attend_range.py:146", "attend_range.py:146", "")


def test_comments_and_long_statements():
    (move, _) = parsed("// begin inline asm; not code\nmov.b32 // a comment\n  %r1,\n  %r2; // %r3;")
    assert move.text == "mov.b32 %r1, %r2"


def test_scopes():
    """Registers that inline assembly declares between braces are its own; those of outside are seen."""
    program = ptx.parse(
        text_of("{\n.reg .b32 a, b;\nmov.b32 a, %r1;\n}\n{\n.reg .b16 a;\nmov.b16 a, 1;\nmov.b32 %r2, %r1;\n}")
    )
    first, second, third, _ = program.instructions
    assert first.operands[0] != second.operands[0]
    assert (first.operands[0].bits, second.operands[0].bits) == (32, 16)
    assert third.operands == (ptx.Register("%r2"), ptx.Register("%r1"))


def test_refuses_what_is_no_kernel():
    with pytest.raises(ValueError, match="expected one kernel, found 0"):
        ptx.parse("nothing")
    with pytest.raises(ValueError, match="expected one kernel, found 2"):
        ptx.parse(text_of("ret;") * 2)
    with pytest.raises(ValueError, match="does not say how many threads"):
        ptx.parse(text_of("ret;").replace(".reqntid 32", ""))
    with pytest.raises(ValueError, match="not a declaration of registers"):
        ptx.parse(text_of(".reg .b32;"))
