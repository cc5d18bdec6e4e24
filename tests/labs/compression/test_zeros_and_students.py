"""What sections 7 to 9 are made of: packed words, weights of which two in four are left, students that compute rounded."""

import doctest

import pytest
import torch

from twophase_labs.compression import int4_launch, students, zeros
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference

WHOLE = ("two_of_four", "distillation_loss")


@pytest.fixture(scope="module")
def solved():
    return run_reference(Workbook.find().lab("06"))


@pytest.mark.parametrize("name", WHOLE)
def test_examples_hold(solved, name):
    examples = doctest.DocTestParser().get_doctest(solved[name].__doc__, dict(solved), name, None, None)
    assert len(examples.examples) >= 2
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=told.append)
    assert result.failed == 0, "".join(told)


def test_a_word_holds_eight_neighbours_the_first_lowest():
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [15] * 8])
    assert int4_launch.pack_words(codes).tolist() == [[0x87654321 - 2**32], [-1]]


def test_two_of_four_written_out_again(solved):
    weight = torch.tensor([[3.0, -4.0, 1.0, 0.5, 0.0, 2.0, -2.0, 1.0]])
    expected = [[3.0, -4.0, 0.0, 0.0, 0.0, 2.0, -2.0, 0.0]]
    assert zeros.written_out(*solved["two_of_four"](weight)).tolist() == expected


def test_a_student_computes_rounded_and_keeps_the_weights_behind(solved):
    student = torch.nn.Sequential(torch.nn.Linear(64, 3, bias=False))
    own, x = student[0].weight.detach().clone(), torch.randn(2, 64)
    with students.computing_rounded(student, solved["fake_quantize"], bits=2):
        assert all(len(row.unique()) <= 4 for row in student[0].weight)
        assert not torch.allclose(student(x), x @ own.T)
    assert torch.equal(student[0].weight, own)
    torch.testing.assert_close(student(x), x @ own.T)


def test_curves_are_drawn_with_their_names_at_the_end():
    curves = {"tokens": {0: 9.0, 3: 7.0, 4: 7.5}, "logits": {0: 9.0, 3: 6.0, 4: 5.0}}
    (axes,) = students.draw_curves(curves).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[9, 7, 7.5], [9, 6, 5]]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("on tokens", (4, 7.5)), ("on logits", (4, 5.0))]
