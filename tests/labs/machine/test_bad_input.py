"""What learners hand in: nothing of it scores, stops the grading of the rest, or goes without a reason.

Each case is the solved notebook with the answer to 1.1 replaced. Exercise 1.3 uses 1.1, and is then checked with the
reference in its place; 1.2 has nothing to do with it. A few cases have the answers to all the others too.
"""

from dataclasses import replace

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.machine.build import solved_notebook, to_text
from twophase_labs.machine.grading.lane import Job, Lane
from twophase_labs.machine.grading.locate import code_cells
from twophase_labs.machine.lab import Workbook, WorkbookError

RIGHT = LAB.templates["1.1"].filled()
RETURN = "return x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1)"


def body(*lines):
    """A `running_mean` with these lines, after which the right answer is returned all the same."""
    return "def running_mean(x):\n" + "".join(f"    {line}\n" for line in (*lines, RETURN))


# Source of the answer; the verdict; what the reason or the details must say.
ANSWERS = {
    "infinite loop": (body("while True:", "    pass"), "timeout", ["still running after 8 s", "while True"]),
    "infinite loop that swallows interruptions": (
        body("while True:", "    try:", "        while True:", "            pass", "    except BaseException:", "        pass"),
        "timeout",
        ["still running after 8 s of computing", "and killed", "never ends"],
    ),
    "recursion without end": ("def running_mean(x):\n    return running_mean(x)\n", "error", ["calls itself without end"]),
    "recursion beyond Python's limit": (
        "import sys\n\nsys.setrecursionlimit(10**9)\n\n\ndef running_mean(x):\n    return sorted([x], key=running_mean)\n",
        "error",
        ["crashed Python (segmentation fault)"],
    ),
    "20 GB of tensor": (body("torch.ones(5 * 10**9)"), "error", ["more memory than the 4 GiB", "5 * 10**9"]),
    "os._exit": (body("import os", "os._exit(0)"), "error", ["ended its process", "os._exit"]),
    "sys.exit": (body("import sys", "sys.exit(0)"), "error", ["ends the whole program"]),
    "segmentation fault": (body("import ctypes", "ctypes.string_at(0)"), "error", ["segmentation fault"]),
    "raises": (body("x[0, 0, 0, 0]"), "error", ["raised IndexError", "line 2 of the cell: x[0, 0, 0, 0]"]),
    "an unknown name": (body("helpful(x)"), "error", ["name 'helpful' is not defined", "setup cells"]),
    "wrong signature": ("def running_mean():\n    return 1\n", "failed", ["cannot be called", "asks for running_mean(x)"]),
    "no function": ("running_mean = 3\n", "failed", ["should be a function; it is a value of type int"]),
    "returns None": ("def running_mean(x):\n    x.cumsum(-1)\n", "failed", ["what it returned cannot be used", "NoneType"]),
    "NaN": ("def running_mean(x):\n    return x * float('nan')\n", "failed", ["is NaN at position 0"]),
    "wrong dtype": ("def running_mean(x):\n    return (x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1)).half()\n", "failed", ["dtype float16, expected float32"]),
    "half filled": (LAB.templates["1.1"].shipped().replace('____("1.1", 1, "the sum up to each position")', "x.cumsum(-1)"), "failed", ["Exercise 1.1, blank 2: from, to is still empty"]),
    "left as it was, but for a comment": (LAB.templates["1.1"].shipped() + "\n# later\n", "not_attempted", ["not attempted"]),
    "syntax error": (body("if x = 1:"), "error", ["syntax error in line 2 of cell"]),
    "the reference": ('from twophase_labs import reference\n\nrunning_mean = reference("1.1")\n', "by_reference", ["no points"]),
    "calls the reference": ('from twophase_labs import use\n\n\ndef running_mean(x):\n    return use("1.1")(x)\n', "error", ["may not call the reference"]),
    # As in a notebook.
    "defines its own check": ('def check(*a):\n    return "passed"\n\n\n' + body("x = x * 2"), "failed", ["differs first"]),
}  # fmt: skip

SLOW = ("infinite loop that swallows interruptions",)  # it takes the exercise's whole time limit


@pytest.mark.parametrize("what", [pytest.param(w, marks=pytest.mark.full) if w in SLOW else w for w in ANSWERS])
def test_a_bad_answer(grader, what):
    source, verdict, said = ANSWERS[what]
    exercises = LAB.exercises if what == "segmentation fault" else ("1.1", "1.2", "1.3")
    cells = [c for c in code_cells(solved_notebook(LAB)) if c.exercise in (None, *exercises)]
    verdicts = grader.judge(LAB, [replace(c, source=source) if c.exercise == "1.1" else c for c in cells])
    got = verdicts["1.1"]
    assert got.verdict == verdict, got
    told = "\n".join([got.reason, *got.details])
    assert [words for words in said if words not in told] == []
    assert verdicts["1.3"].notes == ("checked with the reference's answer to 1.1",)
    assert {verdicts[i].verdict for i in exercises if i not in ("1.1", "1.7")} == {"passed"}


def test_an_older_build_is_graded_with_a_note(grader, tmp_path):
    notebook = solved_notebook(LAB)
    notebook.metadata.twophase.build = "0123456789ab"
    path = tmp_path / "01_demo.ipynb"
    path.write_text(to_text(notebook))
    report = grader.grade(path)
    assert report.points == 12
    assert "another version of lab 01" in report.warnings[0]


def test_a_lab_that_cannot_be_set_up_is_no_learners_fault(tmp_path):
    (tmp_path / "labsolutions").mkdir()
    text = LAB.source.read_text().replace("SCALE = 2.0", "SCALE = 1 / 0")
    (tmp_path / "labsolutions" / "01_demo.py").write_text(text)
    broken = Workbook(tmp_path, DEMO.package)
    lane = Lane(broken, broken.lab("1"))
    with pytest.raises(WorkbookError, match=r"cannot be set up for grading: .*ZeroDivisionError"):
        lane.run(Job("1.1", RIGHT))
