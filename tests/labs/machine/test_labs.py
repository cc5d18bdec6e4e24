"""Every lab of the workbook: its source keeps the rules, and all proofs of its checks hold.

As shipped nothing scores, solved everything passes, every wrong answer of the bank is rejected by the property meant
for it, and every right one is accepted. `python -m twophase_labs.machine.prove` prints the same as a table.
"""

from pathlib import Path

import pytest

from twophase_labs.machine import lint
from twophase_labs.machine.build import learner_notebook
from twophase_labs.machine.grading.grade import Grader
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.prove import prove

WORKBOOK = Workbook(Path(__file__).parents[3])
LABS = list(WORKBOOK.labs)


@pytest.mark.parametrize("number", LABS)
def test_the_source_keeps_the_rules(number):
    lab = WORKBOOK.lab(number)
    assert lint.problems(lab, learner_notebook(lab)) == []


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
