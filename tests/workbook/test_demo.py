"""The machine proven on a lab with one exercise of every kind."""

import copy
from pathlib import Path

import pytest

from tests.workbook.demo.lab01 import section_1
from twophase.workbook import lint
from twophase.workbook.build import learner_notebook
from twophase.workbook.judge import Judge, run_cell
from twophase.workbook.lab import Workbook
from twophase.workbook.reference import run_reference, run_setup

DEMO = Workbook(Path(__file__).parent / "demo", "tests.workbook.demo")


@pytest.fixture(scope="module")
def judge():
    lab = DEMO.lab("1")
    return Judge(lab.exercises, run_reference(lab), {i: len(t.blanks) for i, t in lab.templates.items()})


def verdict(judge, exercise, source, **options):
    namespace = run_setup(DEMO.lab("1"))
    run_cell(source, namespace, f"<exercise {exercise}>")
    return judge.judge(judge.exercises[exercise], namespace, seed=0, **options)


@pytest.mark.parametrize("exercise", [e.id for e in section_1.EXERCISES])
def test_shipped_is_not_attempted_and_solved_passes(judge, exercise):
    template = DEMO.lab("1").templates[exercise]
    here = exercise != "1.7"
    fall_back = judge.exercises[exercise].uses
    shipped, solved = (
        verdict(judge, exercise, s, fall_back=fall_back) for s in (template.shipped(), template.filled())
    )
    assert shipped.verdict == ("not_attempted" if here else "not_run_here")
    assert solved.verdict == ("passed" if here else "not_run_here"), solved


@pytest.mark.parametrize("exercise", list(DEMO.lab("1").banks))
def test_bank(judge, exercise):
    template, bank = DEMO.lab("1").templates[exercise], DEMO.lab("1").banks[exercise]
    for item in (*bank.wrong, *bank.right):
        source = item.fill if isinstance(item.fill, str) else template.filled(item.fill)
        got = verdict(judge, exercise, source, fall_back=judge.exercises[exercise].uses)
        if item in bank.right:
            assert got.passed, (item.title, got)
        else:
            assert (got.verdict, got.failed_property) == ("failed", item.rejected_by), (item.title, got)
            assert got.hint


def test_the_source_keeps_the_rules():
    lab = DEMO.lab("1")
    assert lint.problems(lab, learner_notebook(lab)) == []


def test_a_leaked_solution_is_found():
    lab = DEMO.lab("1")
    notebook = copy.deepcopy(learner_notebook(lab))
    notebook.cells[0].source += "\nreturn SCALE * (x - mean)"
    (leak,) = lint.leaks(lab, notebook)
    assert "cell 0: shows the solution of 1.3" in leak
