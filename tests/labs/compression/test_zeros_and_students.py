"""What sections 7 to 9 are made of: packed words, a student's loss and its curves."""

import doctest

import pytest
import torch

from twophase_labs.compression import int4_launch, students
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference


@pytest.fixture(scope="module")
def solved():
    return run_reference(Workbook.find().lab("06"))


def test_the_examples_of_the_loss_hold(solved):
    loss = solved["distillation_loss"]
    examples = doctest.DocTestParser().get_doctest(loss.__doc__, dict(solved), "distillation_loss", None, None)
    assert len(examples.examples) >= 2
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=told.append)
    assert result.failed == 0, "".join(told)


def test_a_word_holds_eight_neighbours_the_first_lowest():
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [15] * 8])
    assert int4_launch.pack_words(codes).tolist() == [[0x87654321 - 2**32], [-1]]


def test_curves_are_drawn_with_their_names_at_the_end():
    curves = {"tokens": {0: 9.0, 3: 7.0, 4: 7.5}, "logits": {0: 9.0, 3: 6.0, 4: 5.0}}
    (axes,) = students.draw_curves(curves).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[9, 7, 7.5], [9, 6, 5]]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("on tokens", (4, 7.5)), ("on logits", (4, 5.0))]
