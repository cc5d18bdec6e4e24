"""The engine's source on the page is the live one, and short enough to read."""

import inspect

import pytest

from twophase.engine.engine import Engine
from twophase_kernels.attend_range import attend_range
from twophase_kernels.paged_decode import paged_decode_kernel
from twophase_labs.kit.open_engine import show_source


def test_shows_the_function_as_it_is():
    excerpt = show_source(Engine.step)
    assert excerpt.code.startswith("def step(self)")
    assert excerpt.code.endswith("return outputs")
    assert excerpt.code.split("\n") == inspect.cleandoc("\n" + inspect.getsource(Engine.step)).split("\n")
    line = int(excerpt.where.rpartition(" ")[2])
    source = inspect.getsource(inspect.getmodule(Engine)).split("\n")
    assert excerpt.where.startswith("Engine.step, twophase/engine/engine.py")
    assert "def step(" in source[line - 1]
    assert f"```python\n{excerpt.code}\n```" in excerpt._repr_markdown_()
    assert excerpt.code in repr(excerpt)


def test_shows_a_part_of_a_kernel():
    lines = show_source(paged_decode_kernel, last="q_ptr").code.split("\n")
    assert lines[0].startswith("@triton.jit")
    assert ["q_ptr" in line for line in lines] == [False] * (len(lines) - 1) + [True]
    part = show_source(Engine.step, first="self._schedule", last="self._draft")
    assert part.code.lstrip().startswith("plan = self._schedule")
    assert part.code.count("\n") == 2


def test_branches_are_left_out():
    part = show_source(
        attend_range, "page_ids = load_page_ids(table_ptr, positions + B", "acc = add", without="KV_FORMAT"
    )
    assert part.where.endswith(", without KV_FORMAT")
    assert "KV_FORMAT" not in part.code
    assert "v_scale" not in part.code
    assert "\ntile_max = tl.max(scores, axis=1) * qk_scale\nnew_max = tl.maximum" in part.code
    assert "\nif MASKED:\n    visible = " in part.code


@pytest.mark.parametrize(
    ("thing", "part", "why"),
    [
        (Engine.step, {"first": "no such line"}, "no line .* has 'no such line'"),
        (Engine.step, {"last": "def step", "first": "_draft"}, "no line"),
        (Engine, {}, r"lines are too many to read in a cell \(30 at most\)"),
    ],
)
def test_a_part_that_is_not_there_or_too_long(thing, part, why):
    with pytest.raises(ValueError, match=why):
        show_source(thing, **part)
