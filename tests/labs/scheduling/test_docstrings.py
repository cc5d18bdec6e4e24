"""The examples in the docstrings of whole functions and classes, run on the solved cells."""

import doctest

import pytest

from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference

WHOLE = ("iteration_level", "plan_in_chunks", "DecodesFirst", "latencies", "plan_decodes", "Challenger")


@pytest.fixture(scope="module")
def solved():
    return run_reference(Workbook.find().lab("04"))


@pytest.mark.parametrize("name", WHOLE)
def test_examples_hold(solved, name):
    examples = doctest.DocTestParser().get_doctest(solved[name].__doc__, dict(solved), name, None, None)
    assert len(examples.examples) >= 2
    told = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=told.append)
    assert result.failed == 0, "".join(told)
