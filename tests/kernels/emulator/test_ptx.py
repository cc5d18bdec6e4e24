"""The parser, on what Triton writes."""

import pytest

from ptx_emulator import ptx
from tests.kernels.emulator.programs import checks_of, each_of, text_of


def parsed(lines, module=ptx):
    return module.parse(text_of(lines)).instructions


def check_operands(module):
    register, literal, address, pair = module.Register, module.Literal, module.Address, module.Pair
    load, shuffle, move, product, negative, wide = parsed(
        """ld.global.v2.b32 {%r1, %r2}, [%rd1 + 16];
        shfl.sync.bfly.b32 %r3|%p1, %r1, 16, 31, -1;
        mov.b32 %r4, 0fBF800000;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1,%r2,%r3,%r4}, %rd1, %rd2, 0, 1, 1, 0, 0;
        ld.shared.b32 %r5, [global_smem+-4];
        mov.u64 %rd3, 0x10U;""",
        module,
    )[:-1]
    assert (load.name, load.modifiers) == ("ld", ("global", "v2", "b32"))
    assert load.operands == ((register("%r1"), register("%r2")), address(register("%rd1"), 16))
    assert shuffle.operands[0] == pair(register("%r3"), register("%p1"))
    assert shuffle.operands[1:] == (register("%r1"), literal(16), literal(31), literal(-1))
    assert move.operands[1] == literal(0xBF800000)
    assert len(product.operands) == 8
    assert len(product.operands[0]) == 4
    assert product.operands[3:] == (literal(0), literal(1), literal(1), literal(0), literal(0))
    assert negative.operands[1] == address(register("global_smem"), -4)
    assert wide.operands[1] == literal(16)


def check_guards_and_labels(module):
    register = module.Register
    program = module.parse(text_of("@%p1 bra $L__BB0_2;\n@!%p2 mov.b32 %r1, 5;\n$L__BB0_2:\nret;"))
    first, second, last, _ = program.instructions
    assert (first.guard, first.guard_negated) == (register("%p1"), False)
    assert (second.guard, second.guard_negated) == (register("%p2"), True)
    assert last.guard is None
    assert program.labels == {"$L__BB0_2": 2}


def check_source_lines(module):
    """The comment names the file; a .loc without one names nothing."""
    first, second, third, _ = parsed(
        ".loc 1 146 21 // attend_range.py:146:21\nmov.b32 %r1, 1;\nmov.b32 %r2, 2;\n.loc 2 3 4\nmov.b32 %r3, 3;", module
    )
    assert (first.source, second.source, third.source) == ("attend_range.py:146", "attend_range.py:146", "")


def check_comments_and_long_statements(module):
    (move, _) = parsed("// begin inline asm; not code\nmov.b32 // a comment\n  %r1,\n  %r2; // %r3;", module)
    assert move.text == "mov.b32 %r1, %r2"


def check_scopes(module):
    """Registers that inline assembly declares between braces are its own; those of outside are seen."""
    program = module.parse(
        text_of("{\n.reg .b32 a, b;\nmov.b32 a, %r1;\n}\n{\n.reg .b16 a;\nmov.b16 a, 1;\nmov.b32 %r2, %r1;\n}")
    )
    first, second, third, _ = program.instructions
    assert first.operands[0] != second.operands[0]
    assert (first.operands[0].bits, second.operands[0].bits) == (32, 16)
    assert third.operands == (module.Register("%r2"), module.Register("%r1"))


def check_head(module):
    program = module.parse(text_of("mov.b64 %r1, {%p1, %rs2, %r3, %rd4};", threads=96))
    assert program.num_threads == 96
    assert program.parameters == (("kernel_param_0", "u64"), ("kernel_param_1", "u32"))
    assert [register.bits for register in program.instructions[0].operands[1]] == [1, 16, 32, 64]


CHECKS = checks_of(globals())
test_parser = each_of(CHECKS, ptx)


def test_refuses_what_is_no_kernel():
    with pytest.raises(ValueError, match="expected one kernel, found 0"):
        ptx.parse("nothing")
    with pytest.raises(ValueError, match="expected one kernel, found 2"):
        ptx.parse(text_of("ret;") * 2)
    with pytest.raises(ValueError, match="does not say how many threads"):
        ptx.parse(text_of("ret;").replace(".reqntid 32", ""))
    with pytest.raises(ValueError, match="not a declaration of registers"):
        ptx.parse(text_of(".reg .b32;"))
