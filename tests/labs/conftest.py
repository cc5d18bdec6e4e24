"""One grader for all: its worker starts once."""

import pytest

from tests.labs.demo import DEMO
from twophase_labs.commands import grade
from twophase_labs.machine.grading import grade as grading
from twophase_labs.machine.grading import output
from twophase_labs.machine.grading.grade import Grader


@pytest.fixture(scope="session")
def grader():
    with Grader(DEMO, 1) as grader:
        yield grader


@pytest.fixture
def command(grader, monkeypatch):
    """`twophase grade`, with the tests' grader in place of one that starts workers of its own."""
    for name, value in DEMO.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(grading, "Grader", lambda *args: _Kept(grader))
    return lambda *args: grade.main([str(arg) for arg in args])


class _Kept:
    def __init__(self, grader):
        self.grader = grader

    def __enter__(self):
        return self.grader

    def __exit__(self, *error):
        pass
