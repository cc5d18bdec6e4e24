"""`twophase grade` and `twophase labs`: what they print and write, and how they end."""

import json

import pytest
from nbformat.v4 import new_code_cell

from tests.labs.demo import DEMO, LAB
from twophase_labs.commands import labs
from twophase_labs.machine.build import learner_notebook, solved_notebook, to_text


@pytest.fixture
def solved(tmp_path):
    path = tmp_path / "01_demo.ipynb"
    path.write_text(to_text(solved_notebook(LAB)))
    return path


def test_one_notebook(command, solved, tmp_path, capsys):
    out, html = tmp_path / "out.json", tmp_path / "out.html"
    assert command(solved, "--json", out, "--html", html) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "12 of 13 points (1 not run here)" in printed
    assert "no security sandbox" in printed
    data = json.loads(out.read_text())
    assert (data["lab"], data["points"], data["max_points"], data["points_not_run_here"]) == ("01_demo", 12, 13, 1)
    given = {"id": "1.1", "title": "Running mean", "points": 3, "max_points": 3, "verdict": "passed", "hint": ""}
    assert data["exercises"][0].items() >= given.items()
    assert [e["verdict"] for e in data["exercises"]].count("passed") == 7
    text = html.read_text()
    assert "Lab 01: demo" in text
    assert "http" not in text
    assert command(solved, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["points"] == 12, "JSON on standard output is JSON alone"


def test_reveals_and_attempts_are_reported(command, solved, tmp_path):
    notebook = solved_notebook(LAB)
    notebook.cells.append(new_code_cell('reveal("1.3")', id="new"))
    solved.write_text(to_text(notebook))
    (tmp_path / "01_demo.progress.json").write_text('{"exercises": {"1.1": {"revealed": true, "attempts": 4}}}')
    assert command(solved, "--json", tmp_path / "o.json") == 0
    exercises = {e["id"]: e for e in json.loads((tmp_path / "o.json").read_text())["exercises"]}
    assert {i for i, e in exercises.items() if e["revealed"]} == {"1.1", "1.3"}
    assert exercises["1.1"]["attempts"] == 4


def test_what_cannot_be_graded_ends_with_2_and_does_not_stop_the_others(command, solved, tmp_path, capsys):
    none = tmp_path / "none.ipynb"
    assert command(none, solved, "--json", tmp_path / "o.json") == 2
    assert f"twophase grade: {none}" in capsys.readouterr().err
    results = json.loads((tmp_path / "o.json").read_text())["results"]
    assert "does not exist" in results[0]["error"]
    assert results[1]["points"] == 12
    assert command(solved, "--only", "1.99") == 2
    assert "no exercise '1.99'" in capsys.readouterr().err
    solved.unlink()
    (tmp_path / "o.json").unlink()
    assert command(tmp_path) == 2, "an empty folder"


@pytest.fixture
def workbook(tmp_path, monkeypatch):
    (tmp_path / "labsolutions").mkdir()
    (tmp_path / "labsolutions" / "01_demo.py").write_text(LAB.source.read_text())
    monkeypatch.setenv("TWOPHASE_WORKBOOK_ROOT", str(tmp_path))
    monkeypatch.setenv("TWOPHASE_WORKBOOK_PACKAGE", DEMO.package)
    return tmp_path


def test_reset_keeps_what_was_there(workbook, capsys):
    notebook, progress = (workbook / "labs" / f"01_demo.{suffix}" for suffix in ("ipynb", "progress.json"))
    assert labs.main(["reset", "01"]) == 0
    fresh = notebook.read_text()
    assert fresh == to_text(learner_notebook(LAB))
    for content in ("mine", "mine again"):
        notebook.write_text(content)
        progress.write_text(f"progress of {content}")
        assert labs.main(["reset", "1"]) == 0
    assert {path.name: path.read_text() for path in (workbook / "labs").iterdir()} == {
        "01_demo.ipynb": fresh,
        "old_01_demo.ipynb": "mine",
        "old_01_demo.progress.json": "progress of mine",
        "old_01_demo-2.ipynb": "mine again",
        "old_01_demo-2.progress.json": "progress of mine again",
    }
    assert "moved 01_demo.ipynb to old_01_demo-2.ipynb" in capsys.readouterr().out


def test_show(workbook, capsys):
    assert labs.main(["show", "1.6"]) == 0
    assert capsys.readouterr().out == 'answer_1_6 = ____("1.6", 1, "bytes")\n'


@pytest.mark.parametrize("args", [["reset", "7"], ["show", "1.99"], ["show", "9.1"], ["reset", "x"]])
def test_no_such_thing(workbook, capsys, args):
    assert labs.main(args) == 2
    assert "twophase labs: " in capsys.readouterr().err


def test_only_some_exercises_are_graded_again(grader, solved, monkeypatch):
    monkeypatch.setattr(grader, "only", frozenset({"1.3", "1.6"}))
    report = grader.grade(solved)
    assert [result.exercise.id for result in report.results] == ["1.3", "1.6"]
    assert report.points == report.max_points
    assert not any(result.verdict.notes for result in report.results), "1.1, which 1.3 uses, is judged as well"
