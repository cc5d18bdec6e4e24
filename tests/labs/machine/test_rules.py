"""Rules for a lab's sections and exercises: breaking one is told (test_labs.py: the labs keep them)."""

import ast
import doctest
from dataclasses import replace
from inspect import isfunction
from pathlib import Path

import nbformat
import pytest

from tests.labs.demo import LAB
from twophase_labs.machine import blanks, lint, rules
from twophase_labs.machine.build import card, learner_notebook
from twophase_labs.machine.cards import with_skeleton
from twophase_labs.machine.lab import Lab, Workbook
from twophase_labs.machine.solved import run_reference

WORKBOOK = Workbook(Path(__file__).parents[3])


@pytest.mark.parametrize("number", WORKBOOK.labs)
def test_a_picture_is_shown_once(number):
    """A cell that draws a figure and ends with it shows it twice: as what it drew, and as its value."""
    for cell in nbformat.read(WORKBOOK.lab(number).source.with_suffix(".ipynb"), as_version=4).cells:
        shown = {output.output_type for output in cell.get("outputs", []) if "image/png" in output.get("data", {})}
        assert len(shown) <= 1, cell.source


@pytest.mark.parametrize("number", WORKBOOK.labs)
def test_a_source_that_is_shown_is_seen(number):
    """A notebook shows the value of a cell's last line alone."""
    for cell in WORKBOOK.lab(number).notebook.cells:
        if cell.cell_type == "code" and "show_source(" in cell.source:
            statements = ast.parse(cell.source).body
            shown = [i for i, each in enumerate(statements) if ast.unparse(each).startswith("show_source(")]
            assert shown == [len(statements) - 1], cell.source


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


@pytest.mark.parametrize("number", [n for n, lab in WORKBOOK.labs.items() if lab.exercises])
def test_worked_examples_are_true(number):
    assert doctested(WORKBOOK.lab(number)) == ""


HEAD, DOCSTRING = "def f(x):\n", '    """Half of x.\n\n    >>> f(2)\n    1\n    """\n'
BODY = "    # BEGIN SOLUTION\n    # a remark\n    y = x\n    return y / 2\n    # END SOLUTION"


@pytest.mark.parametrize(
    ("source", "is_open"),
    [
        (HEAD + DOCSTRING + BODY, True),
        (HEAD + BODY, True),
        (HEAD + DOCSTRING + "    y = 0\n" + BODY, False),
        (HEAD + BODY + "\n    return 1", False),
        (HEAD + BODY + "\n\n\nx = 3  # SOLUTION", False),
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
    """Makes the demonstration lab with a change to its text."""

    def make(old="", new=""):
        text = LAB.source.read_text()
        assert not old or text.count(old) == 1
        path = tmp_path / "01_demo.py"
        path.write_text(text.replace(old, new) if old else text)
        lab = Lab(path, "tests.labs.demo")
        vars(lab)["exercises"] = dict(lab.exercises)
        return lab

    return make


def test_a_wrong_example_is_told(made):
    assert "[0.0, 3.0]" in doctested(made("    [0.0, 2.0]\n", "    [0.0, 3.0]\n"))


def test_all_is_well_and_the_card_says_what_is_needed(made):
    lab = made()
    assert [i for i in lab.exercises if lab.is_open(i)] == ["1.3"]
    assert rules.problems(lab) == []
    assert doctested(lab) == ""
    needy = card(replace(lab.exercise("1.3"), needs=("model", "triton")))
    assert needy.rstrip("*\n").endswith(" \u00b7 needs the model \u00b7 Triton")
    assert "needs" not in card(lab.exercise("1.3"))


LEARNERS = learner_notebook(LAB)
BROKEN = {
    "a magic": ("SCALE = 2.0", "%matplotlib inline", "magics"),
    "a hidden cell": ("SCALE = 2.0", "# NBVAL_SKIP", "hides a cell"),
    "an answer outside": ("SCALE = 2.0", "SCALE = 2.0  # SOLUTION", "no tag exercise:ID"),
    "a name twice": ("SCALE = 2.0", "def centred(x): pass", "define centred, which exercise 1.3 asks for"),
    "a name from the reference": ("SCALE = 2.0", 'centred = reference("1.3")', "define centred, which exercise 1.3"),
    "another's answer": ("SCALE = 2.0", 'centred = use("1.1")', "define centred, which exercise 1.3 asks for"),
    "no cell": ('# %% tags=["exercise:1.6"]', "# %%", "no cell has the tag exercise:1.6"),
    "another name": ("answer_1_6 =", "answer_6 =", "does not define answer_1_6"),
    "no blank": ("  # SOLUTION: bytes", "", "has no blank"),
    "a setup that asks for answers": ("SCALE = 2.0", 'running_mean = use("1.1")', "cannot call use"),
    "an unknown exercise": ('"exercise:1.6"', '"exercise:1.9"', "no exercise 1.9"),
    "a long first cell": ("SCALE = 2.0", "SCALE = 2.0\n" + "x = 1\n" * 12, "the first code cell has 15 lines"),
    "no minutes": ("# <!-- minutes: 6 + 9 -->\n", "", "section '2. Cost' says no minutes"),
    "no takeaway": ("# **Takeaway.** Two steps.\n", "", "section '2. Cost' has no '**Takeaway.**"),
    "an empty takeaway": ("# **Takeaway.** Two steps.\n", "# **Takeaway.**\n", "has no '**Takeaway.**"),
    "no link": ("[source](https://a.b/c)", "source", "links to no source"),
    "an unknown link": ("https://a.b/c", "https://a.b/d", "https://a.b/d is not in SOURCES of tests.labs.demo"),
    "another box": ("**In production, 2026.**", "**In production.**", "a box begins"),
    "no shape": ("The difference at each of T positions.", "The difference.", "names no shape"),
    "one example": ("    >>> centred(torch.ones(1)).tolist()\n    [0.0]\n", "", "or more, found 1"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_rule_that_is_broken_is_told(made, how):
    old, new, message = BROKEN[how]
    lab = made(old, new)
    assert message in "\n".join([*lint.problems(lab, LEARNERS), *rules.problems(lab)])


@pytest.mark.parametrize(
    ("hints", "message"), [((), "0 hints"), (("a", "b"), "2 hints"), (("a", "b", "c = 1"), "is no skeleton")]
)
def test_hints_and_blanks(made, monkeypatch, hints, message):
    lab = made()
    monkeypatch.setattr(rules, "MAX_BLANKS", 1)
    lab.exercises["1.3"] = replace(lab.exercises["1.3"], hints=hints)
    told = "\n".join(rules.problems(lab))
    assert message in told
    assert "exercise 1.8 has 2 blanks; 1 at most" in told


def test_a_skeleton_is_shown_as_code():
    skeleton = LAB.exercises["1.3"].hints[-1]
    assert with_skeleton(skeleton) == ("Subtract, then scale:", "mean = ...\nreturn SCALE * ...")
    assert with_skeleton("\nfor x in y:\n    ...\n") == ("a skeleton:", "for x in y:\n    ...")
    assert with_skeleton("Look at `x`.") == ("Look at `x`.", "")
