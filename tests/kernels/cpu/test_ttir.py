"""The reader of TTIR: operations, types, regions, places in the source; and loop nests' indices."""

import pytest
import torch

from triton_on_cpu import nest, ttir
from triton_on_cpu.ttir import NotSupportedError, Type

TEXT = """#loc = loc("/home/me/kernels.py":10:0)
#loc1 = loc(unknown)
#loc2 = loc("/home/me/kernels.py":12:8)
#loc3 = loc("/usr/lib/triton/standard.py":290:36)
#loc4 = loc("x_ptr"(#loc))
#loc5 = loc("total"(#loc2))
#loc6 = loc(callsite(#loc1 at #loc5))
#loc7 = loc(callsite(#loc3 at #loc5))
module {
  tt.func public @walk(%x_ptr: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc("x_ptr"(#loc)), %n: i32 loc("n"(#loc)), %p: !tt.ptr<!tt.ptr<f32>> loc(#loc)) attributes {noinline = false} {
    %cst = arith.constant dense<0xFF800000> : tensor<4x8xf32> loc(#loc2)
    %true = arith.constant true loc(#loc1)
    %c0_i32 = arith.constant 0 : i32 loc(#loc1)
    %c1_i32 = arith.constant 1 : i32 loc(#loc1)
    %0 = tt.splat %x_ptr : !tt.ptr<bf16> -> tensor<4x8x!tt.ptr<bf16>> loc(#loc2)
    %x = tt.load %0 cacheModifier = cg : tensor<4x8x!tt.ptr<bf16>> loc(#loc5)
    %wide = arith.extf %x : tensor<4x8xbf16> to tensor<4x8xf32> loc(#loc5)
    %total = "tt.reduce"(%wide) <{axis = 1 : i32}> ({
    ^bb0(%a: f32 loc(callsite(#loc1 at #loc5)), %b: f32 loc(callsite(#loc1 at #loc5))):
      %a_1 = arith.addf %a, %b : f32 loc(#loc7)
      tt.reduce.return %a_1 : f32 loc(#loc6)
    }) : (tensor<4x8xf32>) -> tensor<4xf32> loc(#loc6)
    %both:2 = scf.for %k = %c0_i32 to %n step %c1_i32 iter_args(%s = %total, %m = %c1_i32) -> (tensor<4xf32>, i32)  : i32 {
      %s_1 = arith.addf %s, %total : tensor<4xf32> loc(#loc2)
      %m_1 = arith.cmpi slt, %k, %m : i32 loc(#loc2)
      %m_2 = scf.if %m_1 -> (i32) {
        scf.yield %k : i32 loc(#loc2)
      } else {
        scf.yield %m : i32 loc(#loc2)
      } loc(#loc2)
      scf.yield %s_1, %m_2 : tensor<4xf32>, i32 loc(#loc2)
    } loc(#loc2)
    %y = tt.elementwise_inline_asm "mov $0, %r1;" {constraints = "=r", pure = true} -> i32 loc(#loc2)
    cf.cond_br %true, ^bb1, ^bb2(%both#1 : i32) loc(#loc2)
  ^bb1:  // pred: ^bb0
    tt.return loc(#loc2)
  ^bb2(%left: i32 loc("left"(#loc2))):  // pred: ^bb0
    tt.return loc(#loc2)
  } loc(#loc)
} loc(#loc)
"""


def by_name(block):
    return {op.name: op for op in block.ops}


def test_a_whole_function():
    function = ttir.parse(TEXT)
    assert function.name == "walk"
    assert [(a.name, a.type) for a in function.arguments] == [
        ("x_ptr", Type((), "ptr<bf16>")), ("n", Type((), "i32")), ("p", Type((), "ptr<ptr<f32>>")),
    ]  # fmt: skip
    assert [block.label for block in function.blocks] == ["entry", "bb1", "bb2"]
    ops = by_name(function.blocks[0])
    assert ops["tt.load"].result.type == Type((4, 8), "bf16")
    assert ops["arith.extf"].result.type == Type((4, 8), "f32")
    assert ops["tt.splat"].result.type == Type((4, 8), "ptr<bf16>")
    assert ops["tt.splat"].result.uses == [ops["tt.load"]]
    assert ops["tt.load"].string("cacheModifier") == "cg"
    assert function.blocks[0].ops[1].result.type == Type((), "i1")
    assert ops["tt.elementwise_inline_asm"].operands == []
    assert ops["tt.elementwise_inline_asm"].result.type == Type((), "i32")


def test_regions():
    ops = by_name(ttir.parse(TEXT).blocks[0])
    reduce, loop = ops["tt.reduce"], ops["scf.for"]
    assert (reduce.integer("axis"), reduce.result.type) == (1, Type((4,), "f32"))
    assert [a.name for a in reduce.regions[0].arguments] == ["a", "b"]
    assert [v.type for v in loop.results] == [Type((4,), "f32"), Type((), "i32")]
    assert [a.name for a in loop.regions[0].arguments] == ["k", "s", "m"]
    assert [x.name for x in loop.operands] == ["c0_i32", "n", "c1_i32", "total", "c1_i32"]
    inner = by_name(loop.regions[0])
    assert inner["arith.cmpi"].keyword == "slt"
    assert inner["arith.cmpi"].result.type == Type((), "i1")
    assert inner["arith.cmpi"].operands == [loop.regions[0].arguments[0], loop.regions[0].arguments[2]]
    assert len(inner["scf.if"].regions) == 2
    assert inner["scf.if"].regions[1].ops[0].operands == [loop.regions[0].arguments[2]]
    assert loop.regions[0].ops[-1].operands[1] is inner["scf.if"].result


def test_numbers_may_be_negative():
    ops = by_name(ttir.parse(TEXT.replace("axis = 1 : i32", "axis = -1 : i32")).blocks[0])
    assert ops["tt.reduce"].integer("axis") == -1


def test_jumps_name_their_blocks_and_arguments():
    function = ttir.parse(TEXT)
    branch = by_name(function.blocks[0])["cf.cond_br"]
    loop = by_name(function.blocks[0])["scf.for"]
    assert [label for label, _ in branch.successors] == ["bb1", "bb2"]
    assert branch.successors[1][1] == [loop.results[1]]
    assert [a.name for a in function.blocks[2].arguments] == ["left"]


def test_places():
    """A call that was inlined is placed where it was written; what has no place at all where it was called."""
    ops = by_name(ttir.parse(TEXT).blocks[0])
    assert (ops["tt.load"].file, ops["tt.load"].line) == ("/home/me/kernels.py", 12)
    assert (ops["tt.reduce"].file, ops["tt.reduce"].line) == ("/home/me/kernels.py", 12)
    added = ops["tt.reduce"].regions[0].ops[0]
    assert (added.file, added.line) == ("/usr/lib/triton/standard.py", 290)


def test_what_cannot_be_read():
    with pytest.raises(NotSupportedError, match="noinline function"):
        ttir.parse(
            TEXT.replace(
                "  } loc(#loc)\n}",
                "  } loc(#loc)\n  tt.func private @f() attributes {noinline = true} {\n    tt.return\n  }\n}",
            )
        )
    with pytest.raises(NotSupportedError, match="%z is not defined"):
        ttir.parse(TEXT.replace("%x_ptr : !tt.ptr<bf16> -> tensor", "%z : !tt.ptr<bf16> -> tensor"))
    with pytest.raises(NotSupportedError, match="without a function"):
        ttir.parse("module {\n}\n")


RESHAPES = [
    ((4, 8), (32,)), ((32,), (4, 8)), ((4, 8), (4, 4, 2)), ((4, 4, 2), (4, 8)), ((4, 8), (8, 4)), ((2, 3, 4), (6, 4)), ((1, 8), (8, 1)), ((4, 1, 8), (4, 8)), ((6, 4), (3, 8)),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), RESHAPES)
def test_reshaped(before, after):
    """Every element, against torch."""
    source = torch.arange(torch.Size(before).numel()).reshape(before)
    turned = source.reshape(after)
    for place in torch.cartesian_prod(*[torch.arange(n) for n in after]).reshape(-1, len(after)).tolist():
        names = {f"i{d}": value for d, value in enumerate(place)}
        indices = [nest.Index(f"i{d}", 1, {"": 0, f"i{d}": 1}) for d in range(len(after))]
        found = nest.reshaped(after, indices, before)
        values = [eval(index.text.replace("/", "//"), {}, names) for index in found]
        assert source[tuple(values)] == turned[tuple(place)]
    assert not any("/" in index.text for index in nest.reshaped((4, 4, 2), nest.Nest(0, (4, 4, 2)).indices, (4, 8))), (
        "stays linear"
    )
