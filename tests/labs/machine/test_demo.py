"""A lab with one exercise of every kind keeps the rules, and breaking one is noticed."""

import copy
from dataclasses import replace

import pytest

from tests.labs.demo import DEMO, LAB
from tests.labs.demo.demo.exercises import basics
from twophase_labs.machine import prove
from twophase_labs.machine.bank import right, wrong
from twophase_labs.machine.build import learner_notebook, solved_notebook
from twophase_labs.machine.lab import Workbook, WorkbookError
from twophase_labs.machine.lint import leaks, problems
from twophase_labs.machine.questions import Number


def test_what_each_notebook_shows():
    solved, shipped = ("\n".join(c.source for c in made(LAB).cells) for made in (solved_notebook, learner_notebook))
    assert problems(LAB, learner_notebook(LAB)) == []
    assert "### Exercise 1.1 · Running mean\n\n*3 points · 5 min · about 2 lines · difficulty ●○○*" in shipped
    remark = "Only those who open `labsolutions` read this."
    assert (remark in solved, remark in shipped) == (True, False)
    folded = "<details><summary><b>In production, 2026</b></summary>\n\nA box of words\nwith a [source](https://a.b/c).\n</details>"
    assert f"{folded}\n\n## 2. Cost" in shipped


@pytest.mark.parametrize("shown", ["return SCALE * (x - mean)", "mean = running_mean(x)", "# BEGIN SOLUTION"])
def test_a_leaked_solution_is_found(shown):
    notebook = copy.deepcopy(learner_notebook(LAB))
    notebook.cells[0].source += f"\n{shown}"
    (leak,) = leaks(LAB, notebook)
    assert "cell 0" in leak


def test_every_proof_holds(grader):
    rows = prove.prove(grader, LAB)
    assert [row for row in rows if not row.holds] == []
    assert "(100 %)" in prove.summary(rows)
    assert prove.table(rows).row_count == len(rows)


def test_a_weak_check_does_not_prove(grader, monkeypatch):
    # An answer that is wrong in name only, one that another property rejects, and a right one that is not.
    weak = wrong("right, in truth", {1: "start"}, by="counts up"), wrong("other", {1: "0"}, by="no such")
    monkeypatch.setitem(vars(LAB), "banks", {"1.8": (*weak, right("no", {1: "0"}))})
    rows = prove.prove(grader, LAB)
    assert [(row.answer, row.got) for row in rows if row.exercise == "1.8" and not row.holds] == [
        ("bank", "2 wrong, 1 right"),
        ("wrong", "passed"),
        ("wrong", "failed: counts up"),
        ("right", "failed: counts up"),
    ]
    assert "(100 %)" not in prove.summary(rows)
    assert prove.prove(grader, LAB, only="1.8") == [row for row in rows if row.exercise == "1.8"]
    assert prove.main(["7", "--root", str(DEMO.root), "--package", DEMO.package]) == 2


def test_an_exercise_that_makes_no_sense_is_refused():
    for change, message in [
        ({"names": ()}, "names something"),
        ({"points": 0}, "worth points"),
        ({"hints": ("a",) * 4}, "at most three hints"),
        ({"difficulty": 4}, "difficulty"),
        ({"checks": ()}, "has checks"),
        ({"kind": "numeric"}, "has checks"),
        ({"kind": "numeric", "checks": (), "question": Number(lambda: 1), "names": ("a", "b")}, "one name"),
        ({"checks": basics.MEAN.checks[:1] * 2}, "distinct property names"),
    ]:
        with pytest.raises(ValueError, match=message):
            replace(basics.MEAN, **change).validate()


@pytest.mark.parametrize(
    ("uses", "why"),
    [(("1.3",), r"exercise 1\.3 uses itself, through others among 1\.1, 1\.3"), (("7.7",), r"no exercise '7\.7'")],
)
def test_circles_and_strangers_among_uses(monkeypatch, uses, why):
    monkeypatch.setitem(LAB.exercises, "1.1", replace(LAB.exercises["1.1"], uses=uses))
    with pytest.raises(WorkbookError, match=why):
        LAB.all_uses("1.3")


def test_finding_a_workbook(tmp_path, monkeypatch):
    (tmp_path / "labsolutions").mkdir()
    (tmp_path / "labs").mkdir()
    assert Workbook.find(tmp_path / "labs").root == tmp_path
    demo = Workbook(DEMO.root, DEMO.package)
    for number in ("7", "1" * 5000):
        with pytest.raises(WorkbookError, match=f"no lab '{number[:40]}'; there are 01"):
            demo.lab(number)
    lab = demo.lab("1")
    with pytest.raises(WorkbookError, match=r"no exercise '1\.99'"):
        lab.exercise("1.99")
    monkeypatch.setattr(lab, "_modules", lambda package, prefix: [f"{package}.answers_basics"] * 2)
    with pytest.raises(WorkbookError, match="two banks of one exercise"):
        lab.banks
