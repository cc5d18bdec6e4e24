"""Short answers: accepted when right, a reason when not, and nothing stored as plain text."""

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.labs.demo import LAB
from tests.labs.machine.test_checks import Mute
from twophase_labs.machine import questions
from twophase_labs.machine.checks import Rejected
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching, Number, seal

CHOICE = Choice("abc", seal("9.9", "b"), {"a": "because of a"})
MATCHING = Matching("ab", {"x": seal("9.9", ["x", "a"]), "y": seal("9.9", ["y", "b"])})
BYTES = Number(lambda: 100, rel=0, unit="bytes")


@pytest.mark.parametrize(
    ("question", "value", "why"),
    [
        (CHOICE, " B ", ""),
        (CHOICE, np.str_("b"), ""),
        (CHOICE, "a", "'a' is not the answer: because of a"),
        (CHOICE, "c", "'c' is not the answer"),
        (CHOICE, "", "one letter of a, b, c"),
        (CHOICE, 2, "one letter of a, b, c; you gave 2"),
        (MATCHING, OrderedDict(x="a", y="B"), ""),
        (MATCHING, {"x": "b", "y": "b"}, "1 of 2 pairs are right; look again at 'x'"),
        (MATCHING, {"x": "a"}, "the keys x, y"),
        (MATCHING, {"x": "a", "y": "z"}, "one letter of a, b"),
        (Number(lambda: 100, rel=0.1), 109, ""),
        (Number(lambda: 100, rel=0.1), 50, "50 is too low"),
        (Number(lambda: 100, rel=0.1), 111, "111 is too high, by less than half; within 10 % is accepted"),
        (BYTES, 8, "8 bytes is too low, by a factor of more than 10; only the exact"),
        (Number(lambda: 100, factor=2), 51, ""),
        (Number(lambda: 100, factor=2), 201, "too high, by a factor of more than 1.5; within a factor of 2"),
        (Number(lambda: 100, factor=2), -100, "the answer is a number above 0; you gave -100"),
        (Number(lambda: 0, rel=0, abs=0.5), 0.4, ""),
        (Number(lambda: 3, rel=0), np.int64(3), ""),
        (Number(lambda: 3, rel=0), torch.tensor(3.0), ""),
        (Number(lambda: 3), Mute(3), "you gave a Mute whose repr raises ValueError"),
        (Number(lambda: 1), "1", "one finite number; you gave '1'"),
        *((Number(lambda: 1), value, "one finite number") for value in (True, float("inf"), 10**400)),
    ],
)
def test_answers(question, value, why):
    said = ""
    try:
        for _, test, hint in question.properties("9.9"):
            assert hint
            test(value)
    except Rejected as error:
        said = str(error)
    assert why in said
    assert bool(why) == bool(said)


def test_seals_are_printed_and_differ_by_exercise(capsys):
    assert seal("1.1", "b") != seal("1.2", "b")
    assert questions.main(["1.1", "b"]) == questions.main(["1.1", "x=b"]) == 0
    assert capsys.readouterr().out.split() == [seal("1.1", "b"), seal("1.1", ["x", "b"])]
    assert questions.main([]) == 2


@pytest.mark.parametrize(
    ("value", "expected", "told"),
    [
        (50, 140, "too low by a factor of 2.8"),
        (-3, -0.01, "too low by a factor of 300"),
        (110, 100, "too high by 10"),
        (3, 0, "too high by 3"),
        (-1, 2, "too low by 3"),
    ],
)
def test_how_far_a_prediction_was_off(value, expected, told):
    assert Number.distance(value, expected) == told


def test_any_number_is_a_prediction():
    guess = Exercise("1.4", "", "prediction", ("guess",), 1, 1, question=LAB.exercises["1.4"].question)
    for prop in guess.properties:
        prop.test(SimpleNamespace(guess=200), None)
    with pytest.raises(Rejected, match="one finite number"):
        guess.properties[0].test(SimpleNamespace(guess="200"), None)
