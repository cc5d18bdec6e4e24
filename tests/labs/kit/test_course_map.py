"""How far a learner has come in the course, from the files beside their notebooks."""

import json
import re
from dataclasses import replace

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.kit.course_map import REPORT, closing, course_map, paths
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.progress import DIRECTORY_VARIABLE


def entries(folder, exercises):
    (folder / "01_demo.progress.json").write_text(json.dumps({"version": 1, "exercises": exercises}))


def test_what_has_passed_and_what_comes_next(tmp_path, monkeypatch):
    monkeypatch.setitem(LAB.exercises, "1.5", replace(LAB.exercises["1.5"], is_extra=True))
    (row,) = course_map(DEMO, tmp_path).labs
    assert (row.title, row.minutes) == ("1 demo", LAB.minutes)
    assert (row.num_passed, row.num_exercises, row.points, row.next_exercise) == (0, len(LAB.core), 0, "1.1")
    assert not list(tmp_path.iterdir()), "looking writes nothing"
    entries(tmp_path, {"1.1": {"verdict": "passed"}, "1.2": {"verdict": "failed"}, "1.5": {"verdict": "passed"}})
    (row,) = course_map(DEMO, tmp_path).labs
    assert (row.num_passed, row.points) == (1, LAB.exercises["1.1"].points), "1.5 is extra"
    assert row.next_exercise == "1.2"
    entries(tmp_path, {i: {"verdict": "passed"} for i in LAB.exercises})
    shown = course_map(DEMO, tmp_path)
    points, bar = sum(e.points for e in LAB.core), 10 * "█"
    line = f"| [1 demo](01_demo.ipynb) | 25 min | {bar} | 7 of 7 | {points} of {points} | complete |"
    assert line in shown._repr_markdown_()
    assert repr(shown).splitlines()[1].split() == f"1 demo 25 min {bar} 7 of 7 {points} of {points} complete".split()
    assert shown.next_lab is None


def test_the_next_exercise_is_in_the_lab_that_was_begun_last():
    shown = course_map(Workbook.find())
    first = shown.labs[0]
    assert shown.next_lab is first, "nothing was begun"
    begun = replace(shown.labs[3], num_passed=1, next_exercise="4.2")
    shown = replace(shown, labs=(replace(first, num_passed=1), *shown.labs[1:3], begun, *shown.labs[4:]))
    assert shown.next_lab is begun
    assert "**Next:** 4.2 in [lab 4 scheduling](04_scheduling.ipynb)" in shown._repr_markdown_()
    assert shown.total.num_passed == 2
    assert repr(shown).splitlines()[-1].startswith("all ")


def test_a_path_takes_six_to_eight_hours():
    shown = paths(Workbook.find())
    assert all(6 * 60 <= minutes <= 8 * 60 for minutes in shown.minutes.values()), shown.minutes
    assert len(shown._repr_markdown_().splitlines()) == 2 + len(shown.minutes)


@pytest.mark.parametrize("content", ["{", '{"exercises": {"1.1": 7}}'])
def test_a_file_that_cannot_be_read_stops_nothing(tmp_path, monkeypatch, content):
    (tmp_path / "01_demo.progress.json").write_text(content)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setattr(Workbook, "find", lambda: DEMO)
    (row,) = course_map().labs
    assert row.num_passed == 0


def test_the_diagram_of_the_course_shows_each_lab():
    workbook = Workbook.find()
    shown = re.findall(r'L(\d)\["(\d [a-z ]+)<br/>', workbook.lab("00").source.read_text(encoding="utf-8"))
    names = [lab.name[1:].replace("_", " ") for lab in workbook.labs.values() if lab.exercises]
    assert [(name[0], name) for name in names] == sorted(set(shown))


def test_a_lab_ends_with_what_is_next_its_neighbours_and_the_report_card(tmp_path):
    entries(tmp_path, {"1.1": {"verdict": "passed"}})
    shown = closing("1", DEMO, tmp_path)
    assert f"1 of 8 exercises, {LAB.exercises['1.1'].points} of" in repr(shown)
    assert "next: 1.2" in repr(shown)
    assert REPORT in repr(shown)
    entries(tmp_path, {i: {"verdict": "passed"} for i in LAB.exercises})
    assert "the lab is complete" in repr(closing("1", DEMO, tmp_path))
    links = closing("7", Workbook.find(), tmp_path)._repr_markdown_().split("\n")[-1]
    assert re.findall(r"\]\((\w+)", links) == ["06_compression", "00_start", "08_operations"]
