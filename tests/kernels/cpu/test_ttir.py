"""The reader of TTIR: places in the source, what it cannot read; and loop nests' indices."""

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
  tt.func public @walk(%x: tensor<4x8xf32> loc("x"(#loc))) attributes {noinline = false} {
    %true = arith.constant true loc(#loc2)
    %total = "tt.reduce"(%x) <{axis = -1 : i32}> ({
    ^bb0(%a: f32 loc(callsite(#loc1 at #loc5)), %b: f32 loc(callsite(#loc1 at #loc5))):
      %a_1 = arith.addf %a, %b : f32 loc(#loc7)
      tt.reduce.return %a_1 : f32 loc(#loc6)
    }) : (tensor<4x8xf32>) -> tensor<4xf32> loc(#loc6)
    %y = tt.elementwise_inline_asm "mov $0, %r1;" {constraints = "=r", pure = true} -> i32 loc(#loc2)
    tt.return loc(#loc2)
  } loc(#loc)
} loc(#loc)
"""


def test_places():
    """A call that was inlined is placed where it was written; what has no place at all where it was called."""
    constant, reduce, assembly, _ = ttir.parse(TEXT).blocks[0].ops
    assert constant.result.type.element == "i1"
    assert (reduce.integer("axis"), reduce.result.type.shape) == (-1, (4,))
    assert (reduce.file, reduce.line) == ("/home/me/kernels.py", 12)
    added = reduce.regions[0].ops[0]
    assert (added.file, added.line) == ("/usr/lib/triton/standard.py", 290)
    assert assembly.operands == [], "what is quoted is not read"


def test_what_cannot_be_read():
    other = "  tt.func private @f() attributes {noinline = true} {\n    tt.return\n  }\n"
    for text, message in (
        (TEXT.replace("  } loc(#loc)\n}", f"  }} loc(#loc)\n{other}}}"), "noinline function"),
        (TEXT.replace("arith.addf %a, %b", "arith.addf %a, %z"), "%z is not defined"),
        ("module {\n}\n", "without a function"),
    ):
        with pytest.raises(NotSupportedError, match=message):
            ttir.parse(text)


RESHAPES = [
    ((4, 8), (32,)),
    ((32,), (4, 8)),
    ((4, 4, 2), (8, 4)),
    ((2, 3, 4), (6, 4)),
    ((1, 8), (8, 1)),
    ((6, 4), (3, 8)),
]


@pytest.mark.parametrize(("before", "after"), RESHAPES)
def test_reshaped(before, after):
    """Every element, against torch."""
    source = torch.arange(torch.Size(before).numel()).reshape(before)
    turned = source.reshape(after)
    for place in torch.cartesian_prod(*[torch.arange(n) for n in after]).reshape(-1, len(after)).tolist():
        names = {f"i{d}": value for d, value in enumerate(place)}
        indices = [nest.Index(f"i{d}", 1, {"": 0, f"i{d}": 1}) for d in range(len(after))]
        found = nest.reshaped(after, indices, before)
        assert source[tuple(eval(index.text.replace("/", "//"), {}, names) for index in found)] == turned[tuple(place)]
