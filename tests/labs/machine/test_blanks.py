"""Marked answers become blanks; whatever is filled in gives a cell that parses."""

import ast

import pytest

from twophase_labs.machine.blanks import SourceError, parse, solution_lines

# Marked source, what the learner reads, and the answers.
CASES = {
    "assignment": ("y = a + b  # SOLUTION: the sum", 'y = ____("1.1", 1, "the sum")', ["a + b"]),
    "chained": ("x = y = a  # SOLUTION: s", 'x = y = ____("1.1", 1, "s")', ["a"]),
    "annotated": ("y: int = f(a)  # SOLUTION: s", 'y: int = ____("1.1", 1, "s")', ["f(a)"]),
    "augmented": ("y[i] += a * 2  # SOLUTION: s", 'y[i] += ____("1.1", 1, "s")', ["a * 2"]),
    "return": ("def f(a):\n    return a  # SOLUTION: s", 'def f(a):\n    return ____("1.1", 1, "s")', ["a"]),
    "if": ("if a > 1:  # SOLUTION: s\n    b()", 'if ____("1.1", 1, "s"):\n    b()', ["a > 1"]),
    "for": ("for i in range(9):  # SOLUTION: s\n    b()", 'for i in ____("1.1", 1, "s"):\n    b()', ["range(9)"]),
    "statement": ("cache.append(a)  # SOLUTION: s", '____("1.1", 1, "s")', ["cache.append(a)"]),
    "part": ("y = f(a, b + 1)  # SOLUTION `b + 1`: s", 'y = f(a, ____("1.1", 1, "s"))', ["b + 1"]),
    "brackets": ("y = (a + b) * c  # SOLUTION: s", 'y = ____("1.1", 1, "s")', ["(a + b) * c"]),
    "a sign in a name's annotation": ("y: 'a=b' = c  # SOLUTION: s", "y: 'a=b' = ____(\"1.1\", 1, \"s\")", ["c"]),
    "an argument": ("f(\n    a,\n    b=1 + c,  # SOLUTION: s\n)", 'f(\n    a,\n    b=____("1.1", 1, "s"),\n)', ["1 + c"]),
    "not in a string": ("y = '# SOLUTION: x'", "y = '# SOLUTION: x'", []),
    "non-ASCII before it": ("µ = 'é' + a  # SOLUTION `a`: s", "µ = 'é' + ____(\"1.1\", 1, \"s\")", ["a"]),
    "two": ("x = a  # SOLUTION: s\ny = b  # SOLUTION: t", 'x = ____("1.1", 1, "s")\ny = ____("1.1", 2, "t")', ["a", "b"]),
    "block": (
        "def f(a):\n    # BEGIN SOLUTION: the loop\n    for i in a:\n        g(i)\n\n    h()\n    # END SOLUTION\n    return 1",
        'def f(a):\n    ____("1.1", 1, "the loop")\n    return 1',
        ["for i in a:\n    g(i)\n\nh()"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_blank(case):
    source, shipped, answers = CASES[case]
    template = parse(source, "1.1")
    assert template.shipped() == shipped
    assert [blank.answer for blank in template.blanks] == answers
    ast.parse(template.shipped())
    assert ast.dump(ast.parse(template.filled())) == ast.dump(ast.parse(source))


def test_one_answer_replaced_keeps_the_others():
    template = parse(CASES["two"][0], "1.1")
    assert template.filled({2: "c"}) == "x = a\ny = c"
    with pytest.raises(ValueError, match="none numbered"):
        template.filled({3: "c"})


def test_a_block_answer_takes_the_indent():
    template = parse(CASES["block"][0], "1.1")
    assert template.filled({1: "if a:\n    b()"}) == "def f(a):\n    if a:\n        b()\n    return 1"


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
        ("def f(:\n    y = 1  # SOLUTION", "not valid Python"),
        ("%matplotlib inline\ny = 1  # SOLUTION", "not valid Python"),
    ],
)
def test_a_marker_out_of_place_is_refused(source, why):
    with pytest.raises(SourceError, match=rf"exercise 1\.1: .*{why}"):
        parse(source, "1.1")


def test_solution_lines_leave_trivial_ones_out():
    template = parse("def f(a):\n    y = torch.cumsum(a, -1)  # SOLUTION: s\n    return y  # SOLUTION\n", "1.1")
    assert solution_lines(template) == {"y = torch.cumsum(a, -1)"}
