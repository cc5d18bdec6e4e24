"""How far a learner has come in the course, from the files beside their notebooks."""

import json
import re

import pytest

from tests.labs.timed import LAB, TIMED
from twophase_labs.kit.course_map import course_map
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.progress import DIRECTORY_VARIABLE


def entries(folder, exercises):
    (folder / "01_demo.progress.json").write_text(json.dumps({"version": 1, "exercises": exercises}))


def test_nothing_done(tmp_path):
    (row,) = course_map(TIMED, tmp_path).labs
    assert (row.title, row.minutes) == ("1 demo", LAB.minutes)
    assert (row.num_passed, row.num_exercises, row.points) == (0, len(LAB.core), 0)
    assert row.next_exercise == "1.1"
    assert not list(tmp_path.iterdir()), "looking writes nothing"


def test_what_has_passed_and_what_comes_next(tmp_path):
    entries(tmp_path, {"1.1": {"verdict": "passed"}, "1.2": {"verdict": "failed"}, "1.5": {"verdict": "passed"}})
    (row,) = course_map(TIMED, tmp_path).labs
    assert (row.num_passed, row.points) == (1, LAB.exercises["1.1"].points), "1.5 is extra"
    assert row.next_exercise == "1.2"
    entries(tmp_path, {i: {"verdict": "passed"} for i in LAB.exercises})
    shown = course_map(TIMED, tmp_path)
    points = sum(e.points for e in LAB.core)
    assert f"| [1 demo](01_demo.ipynb) | 17 min | 5 of 5 | {points} of {points} | complete |" in shown._repr_markdown_()
    assert repr(shown).splitlines()[1].split() == f"1 demo 17 min 5 of 5 {points} of {points} complete".split()


@pytest.mark.parametrize("content", ["{", '{"exercises": {"1.1": 7}}'])
def test_a_file_that_cannot_be_read_stops_nothing(tmp_path, monkeypatch, content):
    (tmp_path / "01_demo.progress.json").write_text(content)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setattr(Workbook, "find", lambda: TIMED)
    (row,) = course_map().labs
    assert row.num_passed == 0


def test_the_diagram_of_the_course_shows_each_lab():
    workbook = Workbook.find()
    shown = re.findall(r'L(\d)\["(\d [a-z ]+)<br/>', workbook.lab("00").source.read_text(encoding="utf-8"))
    names = [lab.name[1:].replace("_", " ") for lab in workbook.labs.values() if lab.exercises]
    assert [(name[0], name) for name in names] == sorted(set(shown))
