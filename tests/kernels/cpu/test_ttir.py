"""The reader of TTIR: what compiled kernels do not show: places in the source, strings, refusals; and loop nests' indices."""

import pytest
import torch

from triton_on_cpu import nest, ttir
from triton_on_cpu.ttir import NotSupportedError

TEXT = """#loc = loc("/home/me/kernels.py":10:0)
#loc1 = loc(unknown)
#loc2 = loc("/home/me/kernels.py":12:8)
#loc3 = loc("/usr/lib/triton/standard.py":290:36)
#loc5 = loc("total"(#loc2))
#loc6 = loc(callsite(#loc1 at #loc5))
#loc7 = loc(callsite(#loc3 at #loc5))
module {
  tt.func public @walk(%x_ptr: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc("x_ptr"(#loc))) attributes {noinline = false} {
    %cst = arith.constant dense<0xFF800000> : tensor<4x8xf32> loc(#loc2)
    %0 = tt.splat %x_ptr : !tt.ptr<bf16> -> tensor<4x8x!tt.ptr<bf16>> loc(#loc2)
    %x = tt.load %0 cacheModifier = cg : tensor<4x8x!tt.ptr<bf16>> loc(#loc5)
    %wide = arith.extf %x : tensor<4x8xbf16> to tensor<4x8xf32> loc(#loc5)
    %total = "tt.reduce"(%wide) <{axis = -1 : i32}> ({
    ^bb0(%a: f32 loc(callsite(#loc1 at #loc5)), %b: f32 loc(callsite(#loc1 at #loc5))):
      %a_1 = arith.addf %a, %b : f32 loc(#loc7)
      tt.reduce.return %a_1 : f32 loc(#loc6)
    }) : (tensor<4x8xf32>) -> tensor<4xf32> loc(#loc6)
    %y = tt.elementwise_inline_asm "mov $0, %r1;" {constraints = "=r", pure = true} -> i32 loc(#loc2)
    tt.return loc(#loc2)
  } loc(#loc)
} loc(#loc)
"""


def operations():
    return {op.name: op for op in ttir.parse(TEXT).blocks[0].ops}


def test_attributes():
    """Numbers may be negative, and names inside of strings are none."""
    ops = operations()
    assert ops["tt.reduce"].integer("axis") == -1
    assert ops["tt.load"].string("cacheModifier") == "cg"
    assert ops["tt.elementwise_inline_asm"].operands == []


def test_places():
    """A call that was inlined is placed where it was written; what has no place at all where it was called."""
    ops = operations()
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
