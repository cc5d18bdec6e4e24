"""An integer that came from NumPy is an integer: every solved answer passes with its numbers turned into NumPy's."""

from pathlib import Path

import pytest

from twophase_labs.machine.grading.grade import Grader
from twophase_labs.machine.grading.lane import Job
from twophase_labs.machine.lab import Workbook

WORKBOOK = Workbook(Path(__file__).parents[3])
RETURNS_NO_NUMBERS = {"1.3": "a tensor", "2.9": "a tensor", "3.13": "an engine"}

IN_NUMPY = """
def _in_numpy(thing):
    import functools, types
    import numpy as np

    def turned(x):
        if type(x) is int and abs(x) >= 2**63:
            return x
        if type(x) in (bool, int, float):
            return {bool: np.bool_, int: np.int64, float: np.float64}[type(x)](x)
        if type(x) in (list, tuple):
            return type(x)(map(turned, x))
        return {key: turned(value) for key, value in x.items()} if type(x) is dict else x

    if isinstance(thing, type):
        for name, value in list(vars(thing).items()):
            if isinstance(value, types.FunctionType) and not name.startswith("__"):
                setattr(thing, name, _in_numpy(value))
    if not isinstance(thing, types.FunctionType):
        return thing
    return functools.wraps(thing)(lambda *args, **kwargs: turned(thing(*args, **kwargs)))
"""


def in_numpy(lab, exercise):
    turned = "".join(f"{name} = _in_numpy({name})\n" for name in exercise.names)
    source = lab.templates[exercise.id].filled() + IN_NUMPY + turned
    return Job(exercise.id, source, fall_back=lab.all_uses(exercise.id), seed=0)


@pytest.mark.parametrize(
    "number",
    [
        number if number == "01" else pytest.param(number, marks=pytest.mark.full)
        for number in WORKBOOK.labs
        if WORKBOOK.lab(number).has_exercises
    ],
)
def test_answers_in_numpys_numbers_pass(number):
    lab = WORKBOOK.lab(number)
    asked = [e for e in lab.exercises.values() if e.kind == "code" and e.id not in RETURNS_NO_NUMBERS]
    with Grader(WORKBOOK, 1) as grader:
        verdicts = grader.run_all(lab, [in_numpy(lab, exercise) for exercise in asked])
    assert [verdict for verdict in verdicts if verdict.verdict not in ("passed", "not_run_here")] == []
