"""The examples in the docstrings of open exercises, whole functions and classes, run on the solved cells."""

import doctest

import pytest

from twophase_kernels._triton import IMPORT_ERROR
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference

WORKBOOK = Workbook.find()
WITH_EXAMPLES = [number for number, lab in WORKBOOK.labs.items() if any(map(lab.is_open, lab.exercises))]


@pytest.mark.parametrize("number", WITH_EXAMPLES)
def test_examples_hold(number):
    lab = WORKBOOK.lab(number)
    solved = run_reference(lab)
    run_here = [i for i, e in lab.exercises.items() if lab.is_open(i) and not (IMPORT_ERROR and "triton" in e.needs)]
    names = [name for i in run_here for name in lab.exercise(i).names]
    runner, told = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE), []
    for name in names:
        docstring = solved[name].__doc__ or ""
        runner.run(doctest.DocTestParser().get_doctest(docstring, dict(solved), name, None, None), out=told.append)
    assert runner.tries >= len(names)
    assert runner.failures == 0, "".join(told)
