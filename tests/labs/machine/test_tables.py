"""Results as files: tables that spreadsheets and learning platforms take, replaced in one step as grades come.

Extra exercises are told apart wherever points are shown, and counted beside the grade, never in it.
"""

import contextlib
import csv
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.labs.demo import LAB
from tests.labs.machine.test_folder import GOOD
from twophase_labs.machine.build import card
from twophase_labs.machine.grading.folder import Submission
from twophase_labs.machine.grading.grade import Report, Result
from twophase_labs.machine.grading.output import Output, to_canvas, to_csv, to_moodle
from twophase_labs.machine.grading.report import page, score
from twophase_labs.machine.judge import Verdict

EXTRA = ("1.2", "1.3")
EXERCISES = {i: replace(e, is_extra=i in EXTRA) for i, e in LAB.exercises.items()}
CORE_POINTS = sum(e.points for e in LAB.exercises.values() if e.id not in EXTRA)
EXTRA_POINTS = sum(LAB.exercises[i].points for i in EXTRA)


def report(**verdicts):
    """Verdicts by id with an underscore, `_1_2="passed"`; every other exercise failed."""
    given = {i: Verdict(i, verdicts.get(f"_{i.replace('.', '_')}", "failed"), "") for i in EXERCISES}
    results = tuple(Result(e, given[i]) for i, e in EXERCISES.items())
    return Report("01_demo", Path("a.ipynb"), results, (), (), "", "", 1.0)


def test_core_and_extra_points_are_counted_and_shown_apart():
    graded = report(_1_1="passed", _1_2="passed", _1_3="not_run_here")
    won, bonus = EXERCISES["1.1"].points, EXERCISES["1.2"].points
    assert graded.points_not_run_here == 0, "what is extra is missed by nobody"
    assert score(graded) == f"{won} of {CORE_POINTS} points, {bonus} of {EXTRA_POINTS} extra"
    data = graded.to_json()
    assert [e["id"] for e in data["exercises"] if e["is_extra"]] == list(EXTRA)
    submission = Submission("ann", Path("a.ipynb"), graded)
    row, failed = csv.DictReader(io.StringIO(to_csv([submission, Submission("bob", Path("b"), None, "no notebook")])))
    for column, value in (
        ("points", won),
        ("max_points", CORE_POINTS),
        ("extra_points", bonus),
        ("max_extra_points", EXTRA_POINTS),
    ):
        assert data[column] == int(row[column]) == value
    assert failed["error"] == "no notebook", "the columns of an ungraded notebook stay in place"
    html = page([submission])
    assert f"{bonus} of {EXTRA_POINTS} extra points" in html
    assert html.count('<span class="dim">extra</span>') == len(EXTRA)
    assert f"*{bonus} extra point" in card(EXERCISES["1.2"])


ANN = Path("all", "Ann Lee_123_assignsubmission_file_", "01_demo.ipynb")
WON = EXERCISES["1.1"].points


def rows_of(table):
    return list(csv.reader(io.StringIO(table)))


def class_of_three():
    """Ann's better notebook is neither her first nor her last."""
    anns = [Submission("Ann Lee", ANN, found) for found in (report(), report(_1_1="passed"), report())]
    return [*anns, Submission("bob", Path("bob.ipynb"), report()), Submission("cleo", Path("c"), None, "is empty")]


def test_canvas_imports_a_row_per_learner_and_a_column_per_lab():
    assert rows_of(to_canvas(class_of_three())) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "01_demo"],
        ["    Points Possible", "", "", "", "", str(CORE_POINTS)],
        ["Ann Lee", "123", "", "", "", str(WON)],
        ["bob", "", "", "", "", "0"],
        ["cleo", "", "", "", "", ""],
    ]


def test_moodle_imports_its_offline_grading_worksheet():
    head, ann, bob = rows_of(to_moodle(class_of_three()))
    assert head[:4] == ["Identifier", "Full name", "Grade", "Maximum Grade"]
    assert ann[:4] == ["Participant 123", "Ann Lee", str(WON), str(CORE_POINTS)]
    assert ann[-1].startswith("1.1 Running mean: passed (3 of 3); 1.2 Cost of one more: not yet (0 of 1)")
    assert bob[1] == "bob"


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\tx", "\r=1"])
def test_no_cell_is_a_formula(name):
    for table in (to_csv, to_canvas, to_moodle):
        assert f"'{name}" in table([Submission(name, Path("a"), report())])


def test_a_table_is_never_half_written_and_a_pipe_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    Output(csv=tmp_path / "pipe").write(class_of_three())
    assert (tmp_path / "pipe").is_fifo()
    table = Output(csv=tmp_path / "a.csv", table="canvas")
    table.write(class_of_three())
    with open(tmp_path / "a.csv") as reading:
        table.write([])
        assert "Ann Lee" in reading.read()
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "a.csv"}


def test_rows_are_on_disk_as_they_come(command, grader, tmp_path, monkeypatch):
    folder, grade = tmp_path / "all", type(grader).grade
    for learner in ("ann", "bob", "cleo"):
        (folder / learner).mkdir(parents=True)
        (folder / learner / "01_demo.ipynb").write_text(GOOD)

    def killed(self, path):
        if "bob" in str(path):
            raise KeyboardInterrupt
        return grade(self, path)

    monkeypatch.setattr(type(grader), "grade", killed)
    with contextlib.suppress(KeyboardInterrupt):
        command(folder, "--csv", tmp_path / "o.csv", "--json", tmp_path / "o.json")
    (row,) = csv.DictReader((tmp_path / "o.csv").read_text().splitlines())
    assert (row["learner"], row["points"]) == ("ann", "1")
    assert [r["learner"] for r in json.loads((tmp_path / "o.json").read_text())["results"]] == ["ann"]


def test_old_results_stay_if_there_is_nothing_new(command, tmp_path, capsys):
    (tmp_path / "o.csv").write_text("old")
    assert command(tmp_path / "none.ipynb", "--csv", tmp_path / "o.csv", "--html", tmp_path / "no" / "o.html") == 2
    assert (tmp_path / "o.csv").read_text() == "old"
    assert f"{tmp_path / 'no' / 'o.html'} cannot be written" in capsys.readouterr().err
