"""Rules for labs whose sections say their minutes: these keep them, and breaking one is told."""

import doctest
from dataclasses import replace
from inspect import isfunction
from pathlib import Path

import nbformat
import pytest

from tests.labs.timed import LAB as TIMED
from twophase_labs.machine import blanks, rules
from twophase_labs.machine.build import card
from twophase_labs.machine.cards import with_skeleton
from twophase_labs.machine.lab import Lab, Workbook
from twophase_labs.machine.solved import run_reference

WORKBOOK = Workbook(Path(__file__).parents[3])
SECOND = [number for number, lab in WORKBOOK.labs.items() if lab.minutes is not None]


@pytest.mark.parametrize("number", SECOND)
def test_a_lab_keeps_them(number):
    assert rules.problems(WORKBOOK.lab(number)) == []


@pytest.mark.parametrize("number", sorted(WORKBOOK.labs))
def test_a_picture_is_shown_once(number):
    """A cell that draws a figure and ends with it shows it twice: as what it drew, and as its value."""
    for cell in nbformat.read(WORKBOOK.lab(number).source.with_suffix(".ipynb"), as_version=4).cells:
        shown = {output.output_type for output in cell.get("outputs", []) if "image/png" in output.get("data", {})}
        assert len(shown) <= 1, cell.source


def doctested(lab):
    """What fails of the examples in exercises, run on the solved cells."""
    namespace = run_reference(lab)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    told = []
    for i, template in lab.templates.items():
        functions = [namespace[name] for name in lab.exercises[i].names if isfunction(namespace.get(name))]
        for text in {template.docstring, *(function.__doc__ or "" for function in functions)}:
            test = doctest.DocTestParser().get_doctest(text, dict(namespace), i, None, 0)
            runner.run(test, out=told.append)
    return "".join(told)


@pytest.mark.parametrize("number", [n for n in SECOND if WORKBOOK.lab(n).exercises])
def test_worked_examples_are_true(number):
    assert doctested(WORKBOOK.lab(number)) == ""


OPEN = '''def running_mean(x):
    """The mean up to each position, for x of shape [T].

    >>> running_mean(torch.tensor([2.0, 4.0])).tolist()
    [2.0, 3.0]
    >>> running_mean(torch.ones(1)).tolist()
    [1.0]
    """
    # BEGIN SOLUTION: the means
    # a remark
    totals = x.cumsum(-1)
    return totals / torch.arange(1, x.shape[-1] + 1)
    # END SOLUTION'''


@pytest.mark.parametrize(
    ("source", "is_open"),
    [
        (OPEN, True),
        (OPEN.replace(OPEN[OPEN.index('    """') : OPEN.index("    # BEGIN")], ""), True),
        (OPEN.replace("    # BEGIN", "    totals = 0\n    # BEGIN"), False),
        (OPEN + "\n    return 1", False),
        (OPEN + "\n\n\nx = 3  # SOLUTION", False),
        ("def f(x):\n    return x  # SOLUTION", False),
        ("import math\n\n\nclass A:\n    @property\n    def f(self):\n        # BEGIN SOLUTION\n        return 1\n        # END SOLUTION", True),
        ('class A:\n    """A."""\n\n    # BEGIN SOLUTION\n    def f(self):\n        return 1\n\n    # END SOLUTION', True),
        ("class A:\n    def f(self):\n        # BEGIN SOLUTION\n        return 1\n        # END SOLUTION\n    x = 1", True),
        ("def f(x):\n    for i in x:\n        # BEGIN SOLUTION\n        print(i)\n        # END SOLUTION", False),
    ],
)  # fmt: skip
def test_what_is_open(source, is_open):
    template = blanks.parse(source, "1.1")
    assert template.is_open == is_open
    assert bool(template.docstring) == (is_open and '"""' in source)


@pytest.fixture
def made(tmp_path):
    """Makes today's demonstration lab with a change to its text."""

    def make(old="", new=""):
        text = TIMED.source.read_text()
        assert not old or text.count(old) == 1
        path = tmp_path / "01_demo.py"
        path.write_text(text.replace(old, new) if old else text)
        lab = Lab(path, "tests.labs.timed")
        lab.__dict__["exercises"] = dict(lab.exercises)
        return lab

    return make


def test_a_wrong_example_is_told(made):
    assert "[2.0, 4.0]" in doctested(made("    [2.0, 3.0]\n", "    [2.0, 4.0]\n"))


def test_all_is_well_and_the_card_says_what_is_needed(made):
    lab = made()
    assert [i for i in lab.exercises if lab.is_open(i)] == ["1.2", "1.3"]
    assert rules.problems(lab) == []
    assert doctested(lab) == ""
    exercise = lab.exercise("1.2")
    needy = card(replace(exercise, needs=("model", "triton")))
    assert needy.rstrip("*\n").endswith(" \u00b7 needs the model \u00b7 Triton")
    assert "needs" not in card(replace(exercise, needs=("cpu",)))


BROKEN = {
    "a long first cell": ("SCALE = 2.0", "SCALE = 2.0\n" + "x = 1\n" * 12, "the first code cell has 15 lines"),
    "no minutes": ("# <!-- minutes: 5 -->\n", "", "section '2. State' says no minutes"),
    "no takeaway": ("# **Takeaway.** Two steps.\n", "", "section '2. State' has no '**Takeaway.**"),
    "an empty takeaway": ("# **Takeaway.** Two steps.\n", "# **Takeaway.**\n", "has no '**Takeaway.**"),
    "no link": ("[source](https://a.b/c)", "source", "links to no source"),
    "an unknown link": ("https://a.b/c", "https://a.b/d", "https://a.b/d is not in SOURCES of tests.labs.timed"),
    "another box": ("**In production, 2026.**", "**In production.**", "a box begins"),
    "no shape": ("The mean up to each position, for x of shape [T].", "The mean.", "names no shape"),
    "one example": ("    >>> running_mean(torch.ones(1)).tolist()\n    [1.0]\n", "", "or more, found 1"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_rule_that_is_broken_is_told(made, how):
    old, new, message = BROKEN[how]
    assert message in "\n".join(rules.problems(made(old, new)))


@pytest.mark.parametrize(
    ("hints", "message"), [((), "0 hints"), (("a", "b"), "2 hints"), (("a", "b", "c = 1"), "is no skeleton")]
)
def test_hints_and_blanks(made, monkeypatch, hints, message):
    lab = made()
    monkeypatch.setattr(rules, "MAX_BLANKS", 1)
    lab.exercises["1.2"] = replace(lab.exercises["1.2"], hints=hints)
    told = "\n".join(rules.problems(lab))
    assert message in told
    assert "exercise 1.4 has 2 blanks; 1 at most" in told


def test_a_skeleton_is_shown_as_code():
    skeleton = TIMED.exercises["1.2"].hints[-1]
    assert with_skeleton(skeleton) == ("Sum, then divide:", "totals = ...\nreturn totals / ...")
    assert with_skeleton("\nfor x in y:\n    ...\n") == ("a skeleton:", "for x in y:\n    ...")
    assert with_skeleton("Look at `x`.") == ("Look at `x`.", "")
