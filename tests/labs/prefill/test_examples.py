"""The examples in the docstrings of lab 2's open exercises run, and give what they say."""

import doctest
from pathlib import Path

import pytest

from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference

OPEN = ("layer_attention", "online_softmax", "slot_mapping", "prefill_chunk", "chain_traffic")


@pytest.fixture(scope="module")
def cells():
    return run_reference(Workbook(Path(__file__).parents[3]).lab("02"))


@pytest.mark.parametrize("name", OPEN)
def test_examples_give_what_they_say(cells, name):
    example = doctest.DocTestParser().get_doctest(cells[name].__doc__, dict(cells), name, None, 0)
    assert len(example.examples) >= 2
    said = []
    assert doctest.DocTestRunner().run(example, out=said.append).failed == 0, "".join(said)
