"""Marked answers become blanks; whatever is filled in gives a cell that parses. A bank's answers differ from the solution."""

import ast

import pytest

from tests.labs.demo import LAB
from twophase_labs.machine.bank import right, wrong
from twophase_labs.machine.blanks import SourceError, parse

TWO = "x = a  # SOLUTION: s\ny = b  # SOLUTION: t"
BLOCK = "def f(a):\n    # BEGIN SOLUTION: s\n    for i in a:\n        g(i)\n\n    h()\n    # END SOLUTION\n    return 1"


@pytest.mark.parametrize(
    ("source", "shipped", "answers"),
    [
        ("x = y = a  # SOLUTION: s", "x = y = _", ["a"]),
        ("y[i] += a * 2  # SOLUTION: s", "y[i] += _", ["a * 2"]),
        ("y = (a + b) * c  # SOLUTION: s", "y = _", ["(a + b) * c"]),
        ("y = '# SOLUTION: x'", "y = '# SOLUTION: x'", []),
        ("µ = 'é' + a  # SOLUTION `a`: s", "µ = 'é' + _", ["a"]),
        ("f(\n    a,\n    b=1 + c,  # SOLUTION: s\n)", "f(\n    a,\n    b=_,\n)", ["1 + c"]),
        (BLOCK, "def f(a):\n    _\n    return 1", ["for i in a:\n    g(i)\n\nh()"]),
        (TWO, 'x = _\ny = ____("1.1", 2, "t")', ["a", "b"]),
    ],
)
def test_blank(source, shipped, answers):
    """What no lab has; what one has is told by its notebook (test_labs.py)."""
    template = parse(source, "1.1")
    assert template.shipped() == shipped.replace("_", '____("1.1", 1, "s")', 1)
    assert [blank.answer for blank in template.blanks] == answers
    assert ast.dump(ast.parse(template.filled())) == ast.dump(ast.parse(source))


def test_one_answer_replaced_keeps_the_others_and_takes_the_indent():
    assert parse(TWO, "1.1").filled({2: "c"}) == "x = a\ny = c"
    assert parse(BLOCK, "1.1").filled({1: "if a:\n    b()"}) == "def f(a):\n    if a:\n        b()\n    return 1"
    with pytest.raises(ValueError, match="none numbered"):
        parse(TWO, "1.1").filled({3: "c"})


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def f():\n    # BEGIN SOLUTION\n    a", "without an END"),
        ("def f():\n    a\n    # END SOLUTION", "without a BEGIN"),
        ("# BEGIN SOLUTION\na\n# END SOLUTION", "inside a function"),
        ("def f():\n    # BEGIN SOLUTION\n    # BEGIN SOLUTION\n    a\n    # END SOLUTION", "inside another"),
        ("import torch  # SOLUTION: x", "marks no assignment"),
        ("y = f(a, a)  # SOLUTION `a`: x", "occurs 2 times"),
        ("y = f(a)  # SOLUTION `b`: x", "occurs 0 times"),
        ("def f():\n    # BEGIN SOLUTION\n    y = 1  # SOLUTION: x\n    # END SOLUTION", "claim the same text"),
        ("%matplotlib inline\ny = 1  # SOLUTION", "not valid Python"),
    ],
)
def test_a_marker_out_of_place_is_refused(source, why):
    with pytest.raises(SourceError, match=rf"exercise 1\.1: .*{why}"):
        parse(source, "1.1")


TEMPLATE = LAB.templates["1.1"]
SOLVED = TEMPLATE.filled()


@pytest.mark.parametrize(
    ("change", "cell"),
    [
        (("cumsum", "cumprod"), SOLVED.replace("cumsum", "cumprod")),
        (("cumsum", "cumprod", "/", "*"), SOLVED.replace("cumsum", "cumprod").replace("/", "*")),
        (({1: "x"},), TEMPLATE.filled({1: "x"})),
        (("def f(): pass",), "def f(): pass"),
    ],
)
def test_a_change_of_the_solved_cell(change, cell):
    assert wrong("one", *change, by="any").source(TEMPLATE) == right("one", *change).source(TEMPLATE) == cell


@pytest.mark.parametrize(("old", "times"), [("cumprod", 0), ("totals", 2)])
def test_the_old_text_occurs_once(old, times):
    with pytest.raises(ValueError, match=rf"exercise 1.1, 'one': '{old}' occurs {times} times in the solved cell"):
        right("one", old, "new").source(TEMPLATE)


@pytest.mark.parametrize("change", [(), ("a", "b", "c"), ({1: "a"}, "b"), ({1: "a"}, {2: "b"})])
def test_pairs_or_blanks_or_a_cell(change):
    with pytest.raises(ValueError, match="'one': give pairs of texts"):
        right("one", *change)
