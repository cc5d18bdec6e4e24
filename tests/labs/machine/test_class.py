"""A class of forty is graded in one run, each submission alone."""

import csv
import json
import time

import pytest

from tests.labs.demo import DEMO, LAB
from tests.labs.machine.test_attacks import HOSTILE
from tests.labs.machine.test_bad_input import ANSWERS
from twophase_labs.commands import grade
from twophase_labs.machine.build import learner_notebook, solved_notebook, to_text

POINTS = sum(e.points for e in LAB.core if e.id != "1.7")  # 1.7 needs a GPU


def submissions():
    """(learner, notebook, verdicts on 1.1 that will do, points)."""
    whole, blank = to_text(solved_notebook(LAB)), to_text(learner_notebook(LAB))

    def with_answer(source):
        made = json.loads(whole)
        for cell in made["cells"]:
            if "exercise:1.1" in cell["metadata"].get("tags", []):
                cell["source"] = source
        return json.dumps(made)

    for n in range(5):
        yield f"whole {n}", whole, ("passed",), POINTS
        yield f"blank {n}", blank, ("not_attempted",), 0
    for how in ("asks for input", "draws and seeds"):
        yield how, with_answer(HOSTILE[how][0]), ("passed",), POINTS
    for how in list(ANSWERS)[:21]:
        yield how, with_answer(ANSWERS[how][0]), (ANSWERS[how][1],), POINTS - 3
    for how in [*list(HOSTILE)[:5], *list(HOSTILE)[-2:]]:
        yield how, with_answer(HOSTILE[how][0]), HOSTILE[how][1], None


@pytest.mark.full
def test_forty_submissions(tmp_path, monkeypatch, capsys):
    for name, value in DEMO.environment().items():
        monkeypatch.setenv(name, value)
    expected = {}
    for learner, notebook, verdicts, points in submissions():
        (tmp_path / "all" / learner).mkdir(parents=True)
        (tmp_path / "all" / learner / "01_demo.ipynb").write_text(notebook)
        expected[learner] = verdicts, points
    assert len(expected) == 40
    begun = time.monotonic()
    out = tmp_path / "o.csv"
    assert grade.main([str(tmp_path / "all"), "--csv", str(out), "--jobs", "2"]) == 0
    took_s = time.monotonic() - begun
    rows = {row["learner"]: row for row in csv.DictReader(out.read_text().splitlines())}
    assert rows.keys() == expected.keys()
    for learner, (verdicts, points) in expected.items():
        row = rows[learner]
        assert row["1.1"] in verdicts, (learner, row["1.1"])
        if points is not None:
            assert int(row["points"]) == points, learner
        if not learner.startswith("blank"):
            assert {row[i] for i in ("1.2", "1.3", "1.4", "1.5", "1.6", "1.8")} == {"passed"}, learner
    with capsys.disabled():
        print(f"\n40 submissions in {took_s:.0f} s, {next(iter(rows.values()))['isolation']}")
