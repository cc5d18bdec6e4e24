"""Answers of a bank are what differs from the solution."""

import pytest

from tests.labs.demo import LAB
from twophase_labs.machine.bank import right, wrong

TEMPLATE = LAB.templates["1.1"]
SOLVED = TEMPLATE.filled()


@pytest.mark.parametrize(
    ("change", "cell"),
    [
        (("cumsum", "cumprod"), SOLVED.replace("cumsum", "cumprod")),
        (("cumsum", "cumprod", "/", "*"), SOLVED.replace("cumsum", "cumprod").replace("/", "*")),
        (({1: "x"},), TEMPLATE.filled({1: "x"})),
        (("def f(): pass",), "def f(): pass"),
    ],
)
def test_a_change_of_the_solved_cell(change, cell):
    assert wrong("one", *change, by="any").source(TEMPLATE) == right("one", *change).source(TEMPLATE) == cell


@pytest.mark.parametrize(("old", "times"), [("cumprod", 0), ("totals", 2)])
def test_the_old_text_occurs_once(old, times):
    with pytest.raises(ValueError, match=rf"exercise 1.1, 'one': '{old}' occurs {times} times in the solved cell"):
        right("one", old, "new").source(TEMPLATE)


@pytest.mark.parametrize("change", [(), ("a", "b", "c"), ({1: "a"}, "b"), ({1: "a"}, {2: "b"})])
def test_pairs_or_blanks_or_a_cell(change):
    with pytest.raises(ValueError, match="'one': give pairs of texts"):
        right("one", *change)
