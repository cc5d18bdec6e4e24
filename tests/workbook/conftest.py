"""One grader for all: its worker starts once."""

import pytest

from tests.workbook.demo import DEMO
from twophase.workbook.grading.grade import Grader


@pytest.fixture(scope="session")
def grader():
    with Grader(DEMO, 1) as grader:
        yield grader
