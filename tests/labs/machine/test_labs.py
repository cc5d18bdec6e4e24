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


@pytest.mark.parametrize(
    ("number", "num_answers"),
    [
        pytest.param("01", 1, id="01, a sample"),
        *(pytest.param(n, None, marks=pytest.mark.full) for n in LABS if WORKBOOK.lab(n).has_exercises),
    ],
)
def test_every_proof_holds(number, num_answers):
    with Grader(WORKBOOK) as grader:
        rows = prove(grader, WORKBOOK.lab(number), num_answers=num_answers)
        threads = [lane.num_threads for lane in grader._lanes]
    assert [row for row in rows if not row.holds] == []
    assert set(threads) == {1}, "a worker with more than one thread cannot be forked safely"
