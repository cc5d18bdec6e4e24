"""One word for one thing: other words are found, with few false alarms, wherever a learner reads them."""

import ast
from pathlib import Path

import pytest

from tests import wording
from tests.wording import Text, found_in, prose_of, strings_of
from twophase_labs.machine import glossary
from twophase_labs.machine.lab import Workbook

WORKBOOK = Workbook(Path(__file__).parents[3])
MACHINE = Path(glossary.__file__).parent
# What a learner reads of the machine: cards, verdicts, pictures.
MODULES = ("session.py", "cards.py", "judge.py", "questions.py", "checks.py", "pictures.py", "unfilled.py", "build.py")


@pytest.mark.parametrize(
    "text", ["which page holds it", "a seat in the batch", "two users wait", "Somebody has to wait"]
)
def test_another_word_is_found(text):
    assert len(found_in([Text("here", text)])) == 1


@pytest.mark.parametrize(
    "text",
    ["PagedAttention", "This page takes five minutes", "your guess", "the log-sum-exp of both", "--page-size is 1"],
)
def test_what_may_stand(text):
    assert found_in([Text("here", text)]) == []


@pytest.mark.parametrize("number", sorted(WORKBOOK.labs))
def test_a_lab_keeps_to_it(number):
    assert wording.problems(WORKBOOK.lab(number)) == []


def test_the_table():
    lines = glossary.as_markdown().split("\n")
    assert len(lines) == 2 + len(glossary.TERMS)
    assert all(line.count("|") == 4 for line in lines)
    assert found_in([Text(term.name, prose_of(term.meaning)) for term in glossary.TERMS]) == []
    assert len({term.name for term in glossary.TERMS}) == len(glossary.TERMS)
    assert all(any(word in term.name for term in glossary.TERMS) for word in wording.OTHER_WORDS)


@pytest.mark.parametrize("module", MODULES)
def test_the_machine_keeps_to_it_too(module):
    texts = strings_of(ast.parse((MACHINE / module).read_text()))
    assert found_in([Text(module, text) for text in texts]) == []
