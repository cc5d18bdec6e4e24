"""Extra exercises: told apart wherever points are shown, and counted beside the grade, never in it."""

import csv
import io
from dataclasses import replace
from pathlib import Path

from tests.labs.demo import LAB
from twophase_labs.machine.build import card
from twophase_labs.machine.cards import verdict_card
from twophase_labs.machine.grading.folder import Submission
from twophase_labs.machine.grading.grade import Report, Result
from twophase_labs.machine.grading.output import to_csv
from twophase_labs.machine.grading.report import page, score
from twophase_labs.machine.judge import Verdict

EXTRA = ("1.2", "1.3")
EXERCISES = {i: replace(e, is_extra=i in EXTRA) for i, e in LAB.exercises.items()}
CORE_POINTS = sum(e.points for e in LAB.exercises.values() if e.id not in EXTRA)
EXTRA_POINTS = sum(LAB.exercises[i].points for i in EXTRA)


def report(**verdicts: str) -> Report:
    """Verdicts by id with an underscore, `_1_2="passed"`; every other exercise failed."""
    results = (
        Result(e, Verdict(i, verdicts.get(f"_{i.replace('.', '_')}", "failed"), ""))  # type: ignore[arg-type]
        for i, e in EXERCISES.items()
    )
    return Report("01_demo", Path("a.ipynb"), tuple(results), (), (), "", "", 1.0)


def test_core_and_extra_points_are_counted_apart():
    graded = report(_1_1="passed", _1_2="passed", _1_3="not_run_here")
    won, bonus = EXERCISES["1.1"].points, EXERCISES["1.2"].points
    assert (graded.points, graded.max_points) == (won, CORE_POINTS)
    assert (graded.extra_points, graded.max_extra_points) == (bonus, EXTRA_POINTS)
    assert graded.points_not_run_here == 0, "what is extra is missed by nobody"
    assert score(graded) == f"{won} of {CORE_POINTS} points, {bonus} of {EXTRA_POINTS} extra"


def test_everything_that_prints_a_grade_tells_them_apart():
    graded = report(_1_2="passed")
    bonus = EXERCISES["1.2"].points
    data = graded.to_json()
    assert [e["id"] for e in data["exercises"] if e["is_extra"]] == list(EXTRA)
    assert (data["points"], data["extra_points"], data["max_extra_points"]) == (0, bonus, EXTRA_POINTS)
    submission = Submission("ann", Path("a.ipynb"), graded)
    table = to_csv([submission, Submission("bob", Path("b.ipynb"), None, "no notebook")])
    row, failed = csv.DictReader(io.StringIO(table))
    columns = ("points", "max_points", "extra_points", "max_extra_points")
    assert [int(row[column]) for column in columns] == [0, CORE_POINTS, bonus, EXTRA_POINTS]
    assert failed["error"] == "no notebook", "the columns of an ungraded notebook stay in place"
    html = page([submission])
    assert f"{bonus} of {EXTRA_POINTS} extra points" in html
    assert html.count('<span class="dim">extra</span>') == len(EXTRA)


def test_the_cards():
    one = EXERCISES["1.2"]
    assert f"*{one.points} extra point" in card(one)
    passed = verdict_card(one, Verdict("1.2", "passed", ""), 1)
    assert passed.heading.endswith(f"passed, {one.worth}")
