"""The examples in the docstrings of open exercises, whole functions and classes, run on the solved cells."""

import doctest

import pytest

from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference

WORKBOOK = Workbook.find()
WITH_EXAMPLES = [number for number, lab in WORKBOOK.labs.items() if any(map(lab.is_open, lab.exercises))]


@pytest.mark.parametrize("number", WITH_EXAMPLES)
def test_examples_hold(number):
    lab = WORKBOOK.lab(number)
    solved = run_reference(lab)
    names = [name for i, exercise in lab.exercises.items() if lab.is_open(i) for name in exercise.names]
    runner, told = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE), []
    for name in names:
        docstring = solved[name].__doc__ or ""
        runner.run(doctest.DocTestParser().get_doctest(docstring, dict(solved), name, None, None), out=told.append)
    assert runner.tries >= len(names)
    assert runner.failures == 0, "".join(told)
