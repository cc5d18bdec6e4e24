"""Short answers: accepted when right, a reason when not, and how far off a number is."""

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.labs.demo import LAB
from tests.labs.machine.test_checks import Mute
from twophase_labs.machine.checks import Rejected
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching, Number


def reason(question, value):
    """None if accepted, else why not."""
    try:
        for _, test, hint in question.properties():
            assert hint
            test(value)
    except Rejected as error:
        return str(error)
    return None


CHOICE = Choice("abc", "b", {"a": "because of a"})
MATCHING = Matching("ab", {"x": "a", "y": "b"})


@pytest.mark.parametrize(
    ("question", "value", "why"),
    [
        (CHOICE, "b", None),
        (CHOICE, " B ", None),
        (CHOICE, "a", "'a' is not the answer: because of a"),
        (CHOICE, "c", "'c' is not the answer"),
        (CHOICE, "", "one letter of a, b, c"),
        (CHOICE, 2, "one letter of a, b, c; you gave 2"),
        (MATCHING, {"x": "a", "y": "B"}, None),
        (MATCHING, {"x": "b", "y": "b"}, "1 of 2 pairs are right; look again at 'x'"),
        (MATCHING, {"x": "a"}, "the keys x, y"),
        (MATCHING, {"x": "a", "y": "z"}, "one letter of a, b"),
        (Number(lambda: 100, rel=0.1), 109, None),
        (Number(lambda: 100, rel=0.1), 50, "50 is too low"),
        (Number(lambda: 100, rel=0.1), 111, "111 is too high, by less than half; within 10 % is accepted"),
        (
            Number(lambda: 100, rel=0, unit="bytes"),
            8,
            "8 bytes is too low, by a factor of more than 10; only the exact",
        ),
        (Number(lambda: 100, factor=2), 51, None),
        (Number(lambda: 100, factor=2), 201, "too high, by a factor of more than 1.5; within a factor of 2"),
        (Number(lambda: 100, factor=2), -100, "the answer is a number above 0; you gave -100"),
        (Number(lambda: 0, rel=0, abs=0.5), 0.4, None),
        (Number(lambda: 78, unit="per cent"), 0.78, "in per cent, 78 for a share of 0.78"),
        (Number(lambda: 78, unit="per cent"), 78, None),
        (Number(lambda: 3, rel=0), np.int64(3), None),
        (Number(lambda: 3, rel=0), torch.tensor(3.0), None),
        (Number(lambda: 3), 10**400, "one finite number"),
        (Number(lambda: 3), Mute(3), "you gave a Mute whose repr raises ValueError"),
        (CHOICE, np.str_("b"), None),
        (MATCHING, OrderedDict(x="a", y="b"), None),
        (Number(lambda: 1), "1", "one finite number; you gave '1'"),
        (Number(lambda: 1), True, "one finite number"),
        (Number(lambda: 1), float("inf"), "one finite number"),
    ],
)
def test_answers(question, value, why):
    got = reason(question, value)
    assert got is None if why is None else why in got


@pytest.mark.parametrize(
    ("value", "expected", "told"),
    [(50, 140, "low by a factor of 2.8"), (-3, -0.01, "low by a factor of 300"), (110, 100, "high by 10"), (3, 0, "high by 3"), (-1, 2, "low by 3")],
)  # fmt: skip
def test_how_far_a_prediction_was_off(value, expected, told):
    assert Number.distance(value, expected) == f"too {told}"


def test_any_number_is_a_prediction():
    guess = Exercise("1.4", "", "prediction", ("guess",), 1, 1, question=LAB.exercises["1.4"].question)
    for prop in guess.properties:
        prop.test(SimpleNamespace(guess=200), None)
    with pytest.raises(Rejected, match="one finite number"):
        guess.properties[0].test(SimpleNamespace(guess="200"), None)
