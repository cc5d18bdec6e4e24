"""Every lab of the workbook: its source keeps the rules, and all proofs of its checks hold.

As shipped nothing scores, solved everything passes, every wrong answer of the bank is rejected by the property meant
for it, and every right one is accepted. `python -m twophase_labs.machine.prove` prints the same as a table.
"""

import datetime
import importlib
from pathlib import Path

import pytest

from twophase_labs.machine import build, rules
from twophase_labs.machine.grading.grade import Grader
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.prove import prove

WORKBOOK = Workbook(Path(__file__).parents[3])
LABS = list(WORKBOOK.labs)


def check_the_notebooks(build, number):
    """The shipped notebooks are what the source gives: each kind of blank, the cards, the map of the sections."""
    assert build.drift(build.Workbook(WORKBOOK.root).lab(number), WORKBOOK.root) == []


@pytest.mark.parametrize("number", LABS)
def test_the_source_keeps_the_rules_and_gives_the_notebooks(number):
    assert build.broken_rules(WORKBOOK.lab(number)) == []
    check_the_notebooks(build, number)


@pytest.mark.parametrize("number", LABS)
def test_every_bank_is_of_its_exercises(number):
    lab = WORKBOOK.lab(number)
    assert lab.banks.keys() == {exercise.id for exercise in lab.exercises.values() if exercise.is_code}
    for i, bank in lab.banks.items():
        names = {None, *(p.name for p in lab.exercise(i).checks)}
        assert [answer.title for answer in bank if answer.rejected_by not in names] == []
        for answer in bank:
            assert answer.source(lab.templates[i]) != lab.templates[i].filled()


@pytest.mark.parametrize(
    ("number", "only"),
    [
        pytest.param("07", "7.1", id="07, a sample"),
        *(pytest.param(n, None, marks=pytest.mark.full) for n in LABS if WORKBOOK.lab(n).has_exercises),
    ],
)
def test_every_proof_holds(number, only):
    with Grader(WORKBOOK) as grader:
        rows = prove(grader, WORKBOOK.lab(number), only=only)
        threads = [lane.num_threads for lane in grader._idle]
    assert [row for row in rows if not row.holds] == []
    assert set(threads) == {1}, "a worker with more than one thread cannot be forked safely"


@pytest.mark.parametrize("number", [n for n in LABS if rules.sources_of(WORKBOOK.lab(n))])
def test_what_the_boxes_say_was_read_within_nine_months(number):
    """Fails by the calendar: read the pages of the lab's boxes again, mend what has changed, and write the month."""
    year, month = map(int, importlib.import_module(f"{WORKBOOK.lab(number).package}.sources").READ.split("-"))
    today = datetime.date.today()
    assert 0 <= 12 * (today.year - year) + today.month - month < 9
