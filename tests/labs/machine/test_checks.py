"""The helpers reject what is wrong, tell where and by how much, and accept what is right."""

from collections import Counter, OrderedDict, namedtuple
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
import torch

from twophase_labs.machine.checks import (
    Draw,
    Rejected,
    compare,
    finite,
    fresh,
    integer,
    integers,
    lasting,
    number,
    raises,
    unchanged,
)

X = torch.arange(6.0).reshape(2, 3)
NAN = X.clone()
NAN[1, 0] = float("nan")
OFF = X.clone()
OFF[0, 2] += 0.5


class Mute:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        raise ValueError("no repr")


@pytest.mark.parametrize(
    ("got", "expected", "message"),
    [
        (None, X, "the result is None, expected a tensor"),
        ([1.0], X, "the result is a list, expected a tensor"),
        (X.T, X, r"shape \[3, 2\] \(row, column\), expected \[2, 3\] \(row, column\)"),
        (X.half(), X, "dtype float16, expected float32"),
        (X.double(), X.half(), "dtype float64, expected float16"),
        (NAN, X, "the result is NaN at row 1, column 0"),
        (OFF, X, r"differs first at row 0, column 2: got 2\.5, expected 2"),
        (X.long(), X, "dtype int64"),
        ([1, 2, 4], [1, 2, 3], "at row 2 is 4, expected 3"),
        ([[1], [2]], [[1], [3]], "at row 1 at column 0 is 2, expected 3"),
        ([1, 2, 3], [1, 2], "has 3 elements, expected 2"),
        (1.5, 1.0, r"is 1\.5, expected 1"),
        (float("nan"), 1.0, "is nan, expected 1"),
        (True, 1, "is a bool, expected an int"),
        (1.5, 1, "is a float, expected an int"),
        (np.arange(2), [0, 1], "is a ndarray, expected a list"),
        (torch.tensor(1j), 1.0, "is a tensor of shape"),
        ({3}, {Mute(4)}, r"is \{3\}, expected a set whose repr raises ValueError"),
        ({"a": 1, "b": 2}, {"a": 1}, "a key too many, 'b'"),
        ({"a": 1}, {"a": 2}, r"the result\['a'\] is 1, expected 2"),
        (torch.tensor([2**62 + 1]), torch.tensor([2**62]), r"differs first at index \[0\]"),
    ],
)
def test_compare_rejects(got, expected, message):
    with pytest.raises(Rejected, match=message):
        compare(got, expected, axes=("row", "column"))


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        *((value, value) for value in (X, NAN, torch.zeros(0, 2), [1, (2.0, "a")], {"k": [X]}, None, 3, 2.5, True)),
        (X + 1e-6, X),
        (X.double(), X),
        (1.0 + 1e-7, 1.0),
        (2, 2.0),
        (torch.tensor([float("inf")]), torch.tensor([float("inf")])),
        (OrderedDict(a=1), {"a": 1}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (MappingProxyType({np.int64(1): 2}), {1: 2}),
        ({1, np.int64(2)}, {1, 2}),
        (frozenset([1]), {1}),
        (namedtuple("Pair", "a b")(1, np.int64(2)), (1, 2)),
        (torch.nn.Parameter(X), X),
    ],
)
def test_compare_accepts_what_is_equal_up_to_roundings_and_classes(got, expected):
    compare(got, expected)


def test_how_many_elements_differ_and_when_a_dtype_counts():
    with pytest.raises(Rejected) as caught:
        compare(X * 1.001, X)
    assert "5 of 6 elements differ" in caught.value.details[0]
    compare(X.half(), X, any_dtype=True)
    with pytest.raises(Rejected, match="dtype float64, expected float32"):
        compare(X.double(), X, same_dtype=True)


SAME_NUMBER = {
    3: [3, 3.0, np.int64(3), np.uint8(3), np.float32(3), np.array(3), torch.tensor(3), torch.tensor(3.0), Fraction(3)],
    2.5: [2.5, np.float64(2.5), np.float16(2.5), np.array(2.5), torch.tensor(2.5), Fraction(5, 2)],
    True: [True, np.bool_(True), np.array(True), torch.tensor(True)],
}


@pytest.mark.parametrize(("value", "same"), [(v, s) for v, styles in SAME_NUMBER.items() for s in styles], ids=repr)
def test_a_number_is_a_number_wherever_it_comes_from(value, same):
    compare({"k": [(same,)]}, {"k": [(value,)]})
    with pytest.raises(Rejected):
        compare(same, (not value) if value is True else value + 1)
    assert number(same) == (None if value is True else value)
    assert type(number(same)) in (int, float, type(None))
    assert integer(same) == (3 if value == 3 else None)
    assert integers([1, same]) == ([1, 3] if value == 3 else None)


@pytest.mark.parametrize("value", [None, "3", "", [3], np.arange(3), torch.arange(1), 3j, np.str_("3"), float("nan")])
def test_what_is_no_whole_number(value):
    assert integer(value) is None
    assert integers(value) == ([3] if isinstance(value, list) else None)


def test_inputs_are_left_alone_and_results_are_fresh_finite_and_lasting():
    with unchanged(x=NAN, n=[1]):
        pass
    for value, change in (
        ([1], lambda v: v.append(2)),
        (X.clone(), lambda v: v.add_(1)),
        (NAN.clone(), torch.Tensor.zero_),
    ):
        with pytest.raises(Rejected, match="modified its input `v`"), unchanged(v=value):
            change(value)
    kept = NAN.clone()
    with pytest.raises(Rejected, match="changed `out` of the first one's result"), lasting(out=kept):
        kept[0] += 1
    fresh(X.clone(), x=X)
    with pytest.raises(Rejected, match="a view of the input `x`"):
        fresh(X[1:], x=X)
    finite(X)
    with pytest.raises(Rejected, match="nan at row 1, column 0"):
        finite(NAN, axes=("row", "column"))
    raises(ValueError, int, "x")
    with pytest.raises(Rejected, match="should raise ValueError; it returned 1"):
        raises(ValueError, int, "1")
    with pytest.raises(TypeError):
        raises(ValueError, int, [])


def test_draws_repeat_with_their_seed():
    def drawn(seed):
        draw = Draw(seed)
        tensors = draw.normal(3), draw.integers(0, 9, 4), draw.uniform(2, low=1, high=2), draw.permutation(5)
        return [t.tolist() for t in tensors], draw.integer(0, 100), draw.choice("abc")

    assert drawn(7) == drawn(7) != drawn(8)
    assert Draw(1).normal(2, dtype=torch.bfloat16).dtype is torch.bfloat16
