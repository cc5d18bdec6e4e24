"""What a learner meets in a notebook: verdict cards, hints, predictions, fall-backs, and a file that remembers."""

import json
import re
import time
from dataclasses import replace

import pytest
import torch

from tests.labs.demo import LAB
from twophase.core.errors import ModelFolderError
from twophase_labs.machine import session as session_module
from twophase_labs.machine.checks import compare
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.judge import Judge, run_cell
from twophase_labs.machine.lab import WorkbookError
from twophase_labs.machine.session import Session, adopt
from twophase_labs.machine.solved import run_setup

ASK = "from twophase_labs import check, hint, measured, reference, reveal, use\n"
NOT_YOURS = "not yours: the reference stands under this name; run your exercise's cell again"
WRONG_MEAN = "def running_mean(x):\n    return x\n"


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Runs cells as a kernel would; `restart` gives a new kernel in the same folder."""
    monkeypatch.setattr(session_module, "_sessions", {})

    class Notebook:
        def restart(self):
            self.namespace = vars(run_setup(LAB))
            run_cell(ASK, self.namespace, "<setup>")
            adopt(Session(LAB, tmp_path))
            return self

        def run(self, source, exercise="1.1"):
            run_cell(source, self.namespace, f"<exercise {exercise}>")

        def ask(self, call):
            run_cell(f"answer = {call}", self.namespace, "<cell>")
            return self.namespace["answer"]

        def check(self, exercise="1.1"):
            """The text of the verdict's card."""
            return repr(self.ask(f'check("{exercise}")'))

        def file(self):
            return json.loads((tmp_path / "01_demo.progress.json").read_text())["exercises"]

    return Notebook().restart()


def shipped(exercise):
    return LAB.templates[exercise].shipped()


def solved(exercise, fill=None):
    return LAB.templates[exercise].filled(fill)


def test_a_learners_path(notebook):
    assert "missing" in notebook.check()
    notebook.run(shipped("1.1"))
    assert notebook.check().startswith("○ 1.1 Running mean: not attempted")
    notebook.run(solved("1.1", {2: "0, x.shape[-1]"}))
    card = repr(notebook.ask('check("1.1", seed=5)'))
    assert card.split("\n")[0] == "✗ 1.1 Running mean: not yet (3 points to win)"
    for line in (
        r"  holds  returns one mean per value",
        r"  fails  matches a loop",
        r"  why    the mean differs first at position 0: got -?(inf|\d.*), expected -?\d.*",
        r"         case: shape = \(1,\), seed 5",
        r"  hint   What is each total divided by, and along which axis\?",
    ):
        assert re.search(f"^{line}$", card, re.MULTILINE), (line, card)
    assert "hint 1  Look at the first position." in repr(notebook.ask('hint("1.1")'))
    notebook.restart()
    assert "hint 2  Counting starts at one." in repr(notebook.ask('hint("1.1")'))
    notebook.run(solved("1.1"))
    card = notebook.check()
    assert card.startswith("✓ 1.1 Running mean: passed, 3 points")
    assert notebook.file() == {"1.1": {"attempts": 2, "hints": 2, "verdict": "passed"}}
    assert "passed before" not in card
    notebook.run(solved("1.1", {2: "0, x.shape[-1]"}))
    card = notebook.check()
    assert card.startswith("✗ 1.1 Running mean: not yet")
    assert "passed before, and your progress keeps that" in card
    assert notebook.file()["1.1"]["verdict"] == "passed"


def test_hints_end_and_a_solution_is_recorded(notebook):
    for _ in range(4):
        card = repr(notebook.ask('hint("1.1")'))
    assert "hint 3 of 3" in card
    assert 'reveal("1.1")' in card
    assert "totals = x.cumsum(-1)" in repr(notebook.ask('reveal("1.1")'))
    assert notebook.file()["1.1"] == {"hints": 3, "revealed": True}
    assert "check() tells what fails and why" in repr(notebook.ask('hint("1.2")'))
    assert "a prediction has no hints: commit to a number" in repr(notebook.ask('hint("1.4")'))


def test_what_is_used_falls_back_to_the_reference(notebook):
    notebook.run(shipped("1.1"))
    notebook.run(solved("1.3"), "1.3")
    card = notebook.check("1.3")
    assert card.startswith("✓ 1.3")
    assert "note   checked with the reference's answer to 1.1" in card
    with pytest.raises(Exception, match=r"Exercise 1\.1, blank 1"):
        notebook.namespace["running_mean"](torch.ones(2))
    notebook.run(solved("1.1"))
    assert "reference" not in notebook.check("1.3")


def test_use_says_whose_answer_it_gives(notebook, capsys, monkeypatch):
    notebook.run(shipped("1.1"))
    assert notebook.ask('use("1.1")')(torch.ones(3)).tolist() == [1, 1, 1]
    assert capsys.readouterr().out == "reference: running_mean (exercise 1.1 does not pass yet)\n"
    notebook.run(solved("1.1"))
    assert notebook.ask('use("1.1")') is notebook.namespace["running_mean"]
    assert capsys.readouterr().out == "yours: running_mean (exercise 1.1)\n"
    notebook.run('running_mean = reference("1.1")')
    assert notebook.check().startswith("↷ 1.1 Running mean: by reference")
    capsys.readouterr()
    notebook.run('running_mean = use("1.1")')
    assert capsys.readouterr().out.startswith("reference: running_mean"), "who asks for it by name keeps it"
    monkeypatch.setitem(LAB.exercises, "1.1", replace(LAB.exercises["1.1"], is_extra=True))
    notebook.restart().run(shipped("1.1"))
    notebook.ask('use("1.1")')
    assert capsys.readouterr().out == "reference: running_mean (exercise 1.1 is optional and not tried)\n"


def test_the_reference_under_the_learners_name_is_not_the_learners(notebook):
    notebook.run(WRONG_MEAN)
    notebook.check()
    notebook.run('running_mean = use("1.1")')
    for _ in range(2):
        card = notebook.check()
        assert card.startswith("↷ 1.1 Running mean: by reference")
        assert NOT_YOURS in card
    assert notebook.file()["1.1"] == {"attempts": 1, "verdict": "failed"}, "looking at the reference is no attempt"


@pytest.mark.parametrize("exercise", ["1.2", "1.4", "1.5", "1.6"])
@pytest.mark.parametrize("call", ["use", "reference"])
def test_a_value_that_was_handed_out_is_told_from_an_equal_one(notebook, exercise, call):
    (name,) = LAB.exercises[exercise].names
    notebook.run(shipped(exercise), exercise)
    notebook.run(f'{name} = {call}("{exercise}")')
    value = notebook.namespace[name]
    assert NOT_YOURS in notebook.check(exercise)
    notebook.run(solved(exercise), exercise)
    assert notebook.namespace[name] == value
    assert notebook.check(exercise).startswith(f"✓ {exercise}")
    assert notebook.file()[exercise]["attempts"] == 1


MEASURE = 'running_mean = use("1.1")\ncentred = use("1.3")\ncentred(torch.ones(2))'


@pytest.mark.parametrize("checked_first", [True, False])
def test_cells_in_any_order_give_the_learner_their_own_again(notebook, capsys, checked_first):
    notebook.run(WRONG_MEAN)
    notebook.run(solved("1.3"), "1.3")
    own = notebook.namespace["centred"]
    if checked_first:
        assert notebook.check("1.3").startswith("✓ 1.3")
    for _ in range(2):  # 1.3 is right, but calls 1.1
        capsys.readouterr()
        notebook.run(MEASURE)
        assert capsys.readouterr().out.count("reference: ") == 2
        assert notebook.namespace["centred"] is not own
    notebook.run(solved("1.1"))
    notebook.run(MEASURE)
    assert capsys.readouterr().out.count("yours: ") == 2
    assert notebook.namespace["centred"] is own
    for exercise in ("1.1", "1.3"):
        assert notebook.check(exercise).startswith(f"✓ {exercise}")
    notebook.run(WRONG_MEAN)
    notebook.run('centred = use("1.3")')
    assert notebook.namespace["centred"] is not own


def test_a_prediction_is_committed_before_it_is_compared(notebook):
    notebook.run(shipped("1.4"), "1.4")
    assert "not attempted" in notebook.check("1.4")
    notebook.run("guess_1_4 = 200", "1.4")
    card = notebook.check("1.4")
    assert card.startswith("✓ 1.4 Additions: predicted, 1 point")
    assert "committed  200 additions" in card
    notebook.run("guess_1_4 = 5000", "1.4")
    assert "Your first prediction stands; 5000 came later." in notebook.check("1.4")
    card = repr(notebook.ask('measured("1.4", 5050)'))
    for words in ("surprised?", "predicted  200 additions", "measured   5050 additions"):
        assert words in card
    assert "too low by a factor of 25.2; within a factor of 1.5 would have been close" in card
    assert notebook.file()["1.4"] == {"attempts": 2, "measured": 5050.0, "prediction": 200.0, "verdict": "passed"}


def test_measuring_without_a_prediction(notebook):
    assert "nothing yet" in repr(notebook.ask('measured("1.4", torch.tensor(3))'))
    notebook.run("guess_1_4 = 4", "1.4")
    assert "written   4 additions, after the measurement" in notebook.check("1.4")
    entry = {"attempts": 1, "late_prediction": 4.0, "measured": 3.0, "verdict": "passed"}
    assert notebook.file()["1.4"] == entry
    card = repr(notebook.ask('measured("1.4", 3)'))
    assert "predicted  4 additions, but after the measurement" in card
    assert "nothing yet" not in card
    assert notebook.file()["1.4"] == entry
    with pytest.raises(WorkbookError, match="is no prediction"):
        notebook.ask('measured("1.2", 3)')
    with pytest.raises(WorkbookError, match="should be a finite number; got nan"):
        notebook.ask('measured("1.4", float("nan"))')


def test_an_endless_loop_is_stopped_and_the_line_named(notebook, monkeypatch):
    monkeypatch.setitem(vars(LAB.exercises["1.1"]), "time_limit_s", 0.3)
    notebook.run("def running_mean(x):\n    while True:\n        x = x + 1\n")
    begun = time.monotonic()
    card = notebook.check()
    assert time.monotonic() - begun < 5
    assert "out of time" in card
    assert re.search(r"line [23] of the cell: ", card)


def test_the_notebooks_random_numbers_go_on_as_if_unchecked(notebook):
    notebook.run(solved("1.1"))
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    assert notebook.check().startswith("✓")
    assert torch.equal(torch.rand(2), expected)


def judged(source, test):
    """The verdict on a cell, by one property with this test."""
    namespace = {}
    run_cell(source, namespace, "<exercise 9.2>")
    checks = (Property("holds", lambda answer, draw: test(answer.running_mean), "The property's hint."),)
    exercise = Exercise("9.2", "", "code", ("running_mean",), 1, 1, checks=checks)
    return Judge({"9.2": exercise}, {}, {}).judge(exercise, namespace)


ODD = "class Odd(ValueError):\n    def __str__(self):\n        return 1 / 0\ndef running_mean(x):\n    raise Odd\n"
RAISES = {
    "def running_mean(x):\n    return len(3)\n": "TypeError: object of type 'int' has no len()",
    "def helper(a, b):\n    return a\ndef running_mean(x):\n    return helper(x)\n": (
        "TypeError: helper() missing 1 required positional argument: 'b'"
    ),
    "def running_mean(x):\n    return running_mean(x, 1)\n": (
        "TypeError: running_mean() takes 1 positional argument but 2 were given"
    ),
    "def running_mean(x):\n    assert x > 99\n": "AssertionError",
    ODD: "Odd: (its message cannot be shown: __str__ raised ZeroDivisionError)",
}


@pytest.mark.parametrize("source", RAISES)
def test_a_raised_exception_is_shown_with_its_line_and_no_hint(source):
    got = judged(source, lambda running_mean: running_mean(1))
    assert (got.verdict, got.reason, got.hint) == ("error", f"your code raised {RAISES[source]}", "")
    assert re.match(r"line \d of the cell: (return|assert|raise)", got.details[-1])


def wraps(running_mean):
    try:
        running_mean(0)
    except ZeroDivisionError as error:
        raise RuntimeError("the engine failed") from error


def needs_two(a, b):
    return a


def loads(running_mean):
    raise ModelFolderError("not prepared")


@pytest.mark.parametrize(
    ("test", "verdict", "reason", "has_hint"),
    [
        (wraps, "error", "your code raised ZeroDivisionError: division by zero", False),
        (lambda mean: needs_two(mean(1)), "failed", "what it returned cannot be used: TypeError: ", True),
        (lambda mean: mean(1, 2), "failed", "it cannot be called as the exercise asks: running_mean() takes 1", False),
        (loads, "not_run_here", "needs the model; run `twophase model prepare`", False),
    ],
)
def test_what_a_check_raised_is_told_from_what_the_answer_raised(
    monkeypatch, tmp_path, test, verdict, reason, has_hint
):
    monkeypatch.setenv("TWOPHASE_HOME", str(tmp_path))
    got = judged("def running_mean(x):\n    return 1 / x\n", test)
    assert (got.verdict, got.reason[: len(reason)], bool(got.hint)) == (verdict, reason, has_hint)


def test_cards_are_html_too_and_escape_what_they_show(notebook):
    notebook.run("def running_mean(x):\n    raise ValueError('<b>&`x`')\n")
    html = notebook.ask('check("1.1")')._repr_html_()
    assert "ValueError: &lt;b&gt;&amp;<code>x</code>" in html
    assert "<b>&`" not in html


def test_a_name_that_is_no_exercise(notebook):
    with pytest.raises(WorkbookError, match=r"no exercise '1\.9'; it has 1\.1"):
        notebook.check("1.9")
    with pytest.raises(WorkbookError, match=r'check\("1\.3"\); got 1\.1'):
        notebook.ask("check(1.1)")


KERNEL = """
import torch
import triton
import triton.language as tl

from twophase_labs import ____


@triton.jit
def add_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=____("9.1", 1, "which are inside"))
    tl.store(y_ptr + offs, ____("9.1", 2, "the sum"), mask=offs < n)


def add_one(x):
    y = torch.empty_like(x)
    add_kernel[(triton.cdiv(len(x), 16),)](x, y, len(x), BLOCK=16)
    return y
"""
FIRST, SECOND = '____("9.1", 1, "which are inside")', '____("9.1", 2, "the sum")'


@pytest.mark.parametrize(
    ("mask", "value", "verdict", "said"),
    [
        (FIRST, SECOND, "not_attempted", "not attempted yet"),
        ("offs < n", SECOND, "failed", "Exercise 9.1, blank 2: the sum is still empty"),
        ("offs < n", "x + 2", "failed", "differs first at index [0]"),
        ("offs < n", "x + y", "error", "is not defined"),
        ("offs < n", "x + 1", "passed", "every property holds"),
    ],
)
def test_kernels(mask, value, verdict, said):
    pytest.importorskip("triton")

    def adds(answer, draw):
        x = draw.normal(20)
        compare(answer.add_one(x), x + 1)

    names, checks = ("add_kernel", "add_one"), (Property("adds one", adds, "Add one."),)
    exercise = Exercise("9.1", "Add one", "kernel", names, 1, 1, checks=checks, needs=("triton",))
    namespace = {}
    run_cell(KERNEL.replace(FIRST, mask).replace(SECOND, value), namespace, "<exercise 9.1>")
    got = Judge({"9.1": exercise}, {}, {"9.1": 2}).judge(exercise, namespace)
    assert (got.verdict, said in got.reason) == (verdict, True), got
