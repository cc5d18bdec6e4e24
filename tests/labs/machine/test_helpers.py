"""What of a notebook's other cells runs with an answer: whatever makes it right in the notebook."""

import json

import pytest

from tests.labs.demo import LAB
from twophase_labs.machine.build import learner_notebook, to_text
from twophase_labs.machine.grading.helpers import definitions, needed
from twophase_labs.machine.grading.locate import Cell, code_cells
from twophase_labs.machine.lab import Lab

MEAN = LAB.templates["1.1"].filled()
CENTRED = "def centred(x):\n    return SCALE * (x - {}(x))\n"


def wanted(answer, *sources, taken=("answer",), answers=()):
    """The helpers of an answer in cell 50, among cells from 1; `answers` of exercise 1.1 come after them."""
    cells = [Cell(n, source, None) for n, source in enumerate(sources, start=1)]
    cells += [Cell(60 + n, source, "1.1") for n, source in enumerate(answers)]
    located = {"1.1": cells[-1]} if answers else {}
    helpers, aliases = needed(definitions(cells, LAB, located), [answer], Cell(50, answer, "9.9"), taken)
    return [*helpers, *aliases]


IMPORTS, SIZES = "import math\nfrom os import path as p", "WIDTH = 4; HEIGHT = 5"
SHIFT = "@p\ndef shift(x):\n    return x * WIDTH"
WRITTEN = "def f(ä):\n    # a remark\n    return (ä +\n            1)"
ALIASES = ("step = use('1.1')", "(step, b) = use('1.1'), use('1.3')", "step = e = use('1.8')")
OTHERS = ("step = use('7.7')", "step = use(1.1)", "step = other('1.1')", "_, step = len(''), use('1.8')")


@pytest.mark.parametrize(
    ("answer", "sources", "runs"),
    [
        ("shift(1)", [IMPORTS, SIZES, SHIFT], ["from os import path as p", "WIDTH = 4", SHIFT]),
        ("1", [IMPORTS, SIZES, SHIFT], []),
        ("eval('HEIGHT')", [SIZES], ["HEIGHT = 5"]),
        ("1", ["from math import *"], ["from math import *"]),
        ("a, b, c", ["a = len('')", "while True: b = 1", "print(c)", "b, a = 1, 2", "a += 1", "c = {[]: 1}"], []),
        ("f", [f"'ö'; x = 'ä'; y = 2\n{WRITTEN}"], [WRITTEN]),
        ("y", ["'ö'; x = 'ä'; y = 2\n"], ["y = 2"]),
        ("running_mean", [MEAN.replace("x.", "y.")], []),
        *(("step", [alias], [alias]) for alias in ALIASES),
        *(("step", [other], []) for other in OTHERS),
    ],
)
def test_what_an_answer_mentions_runs_as_it_was_written_and_what_that_mentions(answer, sources, runs):
    assert wanted(answer, *sources) == runs


def test_another_exercises_answer_counts_in_its_own_cell_only():
    assert wanted("running_mean", answers=[MEAN]) == [MEAN.rstrip("\n")]
    assert wanted("running_mean", answers=[MEAN], taken=("answer", "running_mean")) == []


def test_the_labs_own_cells_count_above_the_answer():
    lab, source = Lab(LAB.source, LAB.package), "from collections import Counter as Tally"
    lab.notebook.cells[3].source = source
    cells = code_cells(lab.notebook)
    (number,) = [cell.number for cell in cells if cell.source == source]
    found = definitions(cells, lab, {})
    assert needed(found, ["Tally"], Cell(number + 1, "", "1.8"), ()) == ((source,), ())
    assert needed(found, ["Tally"], Cell(number - 1, "", "1.8"), ()) == ((), ())
    assert needed(found, ["torch"], Cell(number + 1, "", "1.8"), ()) == ((), ())  # the setup has run


COUNTER = LAB.templates["1.8"].filled()
SHIPPED = code_cells(json.loads(to_text(learner_notebook(LAB))))
WRONG = MEAN.replace("cumsum(-1)", "cumsum(0)")


def answered(**given):
    """The learner's cells with answers by `e1_8`."""
    sources = {name[1:].replace("_", "."): source for name, source in given.items()}
    return [Cell(c.number, sources.get(c.exercise, c.source), c.exercise) for c in SHIPPED]


@pytest.mark.parametrize(
    ("mean", "extra", "called"),
    [
        (MEAN, "mean = use('1.1')", "mean"),
        (WRONG, "mean = use('1.1')", "mean"),
        (f"{MEAN}\n\ndef total(x):\n    return running_mean(x)\n", "", "total"),
        (MEAN, "def far(x):\n    return running_mean(x)\n", "globals()['far']"),
    ],
)
def test_a_right_answer_of_a_notebook_is_right_in_the_grader(grader, mean, extra, called):
    cells = answered(e1_1=mean, e1_3=CENTRED.format(called), e1_8=COUNTER)
    got = grader.judge(LAB, [*cells, Cell(99, extra, None)])["1.3"]
    assert got.passed, got
    assert got.notes == (("checked with the reference's answer to 1.1",) if mean == WRONG else ())


REBOUND = {
    "in a measuring cell": ("", "running_mean = use('1.1')"),
    "with others": ("", "running_mean, Counter = use('1.1'), use('1.8')"),
    "at the end of its own cell": ("\n\nrunning_mean = use('1.1')\n", ""),
    "in another answer's cell": ("", "running_mean = use('1.1')\n" + CENTRED.format("running_mean")),
}


@pytest.mark.parametrize("how", REBOUND)
@pytest.mark.parametrize("mean", [MEAN, WRONG, LAB.templates["1.1"].shipped()])
def test_a_name_bound_again_by_use_answers_nothing_and_hides_nothing(grader, how, mean):
    after, elsewhere = REBOUND[how]
    centred = LAB.templates["1.3"].filled()
    if "another answer" in how:
        centred, elsewhere = elsewhere, ""
    cells = answered(e1_1=mean + after, e1_3=centred, e1_8=COUNTER)
    is_right, is_shipped = mean == MEAN, "____" in mean
    for at in (0, len(cells)):
        got = grader.judge(LAB, [*cells[:at], *[Cell(99, elsewhere, None)] * bool(elsewhere), *cells[at:]])
        assert got["1.1"].verdict == ("passed" if is_right else "not_attempted" if is_shipped else "failed"), got["1.1"]
        assert got["1.3"].passed, got["1.3"]
        assert bool(got["1.3"].notes) != is_right
        assert got["1.8"].passed


@pytest.mark.parametrize("call", ["use", "reference"])
def test_a_cell_that_only_hands_out_is_by_reference_if_it_is_the_exercises_own(grader, call):
    cells = [c for c in SHIPPED if c.exercise != "1.1"]
    rebound = f"from twophase_labs import {call}\nrunning_mean = {call}('1.1')"
    assert grader.judge(LAB, [*cells, Cell(99, rebound, "1.1")])["1.1"].verdict == "by_reference"
    assert grader.judge(LAB, [*cells, Cell(99, rebound, None)])["1.1"].verdict == "missing"
