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


REJECTED = {
    "None": (None, X, "the result is None"),
    "not a tensor": ([1.0], X, "the result is a list, expected a tensor"),
    "shape": (X.T, X, r"shape \[3, 2\] \(row, column\), expected \[2, 3\] \(row, column\)"),
    "dtype": (X.half(), X, "dtype float16, expected float32"),
    "NaN": (NAN, X, "the result is NaN at row 1, column 0"),
    "first difference": (OFF, X, r"differs first at row 0, column 2: got 2\.5, expected 2"),
    "int for float": (X.long(), X, "dtype int64"),
    "list": ([1, 2, 4], [1, 2, 3], "at row 2 is 4, expected 3"),
    "nested": ([[1], [2]], [[1], [3]], "at row 1 at column 0 is 2, expected 3"),
    "too long": ([1, 2, 3], [1, 2], "has 3 elements, expected 2"),
    "number": (1.5, 1.0, r"is 1\.5, expected 1"),
    "a NaN": (float("nan"), 1.0, "is nan, expected 1"),
    "bool for int": (True, 1, "is a bool, expected an int"),
    "half for an int": (1.5, 1, "is a float, expected an int"),
    "array for a list": (np.arange(2), [0, 1], "is a ndarray, expected a list"),
    "complex": (torch.tensor(1j), 1.0, "is a tensor of shape"),
    "odd repr": ({3}, {Mute(4)}, r"is \{3\}, expected a set whose repr raises ValueError"),
    "string": ("a", "b", "is 'a', expected 'b'"),
    "extra key": ({"a": 1, "b": 2}, {"a": 1}, "a key too many, 'b'"),
    "value": ({"a": 1}, {"a": 2}, r"the result\['a'\] is 1, expected 2"),
    "big integers": (torch.tensor([2**62 + 1]), torch.tensor([2**62]), r"differs first at index \[0\]"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_compare_rejects(case):
    got, expected, message = REJECTED[case]
    with pytest.raises(Rejected, match=message):
        compare(got, expected, axes=("row", "column"))


@pytest.mark.parametrize(
    "value", [X, NAN, torch.tensor(3), torch.zeros(0, 2), [1, (2.0, "a")], {"k": [X]}, None, 3, 2.5, True]
)
def test_compare_accepts_what_is_equal(value):
    compare(value, value)


def test_compare_tolerates_roundings_only():
    compare(X + 1e-6, X)
    compare(1.0 + 1e-7, 1.0)
    compare(2, 2.0)
    compare(X.double(), X, any_dtype=True)
    compare(torch.tensor([float("inf")]), torch.tensor([float("inf")]))
    with pytest.raises(Rejected) as caught:
        compare(X * 1.001, X)
    assert "5 of 6 elements differ" in caught.value.details[0]


SAME_NUMBER = {
    3: [3, 3.0, np.int64(3), np.uint8(3), np.float32(3), np.array(3), torch.tensor(3), torch.tensor(3.0), Fraction(3)],
    2.5: [2.5, np.float64(2.5), np.float16(2.5), np.array(2.5), torch.tensor(2.5), Fraction(5, 2)],
    True: [True, np.bool_(True), np.array(True), torch.tensor(True)],
}


@pytest.mark.parametrize(("value", "same"), [(v, s) for v, styles in SAME_NUMBER.items() for s in styles], ids=repr)
def test_a_number_is_a_number_wherever_it_comes_from(value, same):
    compare(same, value)
    compare([(same,)], [(value,)])
    compare({"k": same}, {"k": value})
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


def test_containers_of_other_classes():
    compare(OrderedDict(a=1), {"a": 1})
    compare(Counter("aab"), {"a": 2, "b": 1})
    compare(MappingProxyType({np.int64(1): 2}), {1: 2})
    compare({1, np.int64(2)}, {1, 2})
    compare(frozenset([1]), {1})
    compare(namedtuple("Pair", "a b")(1, np.int64(2)), (1, 2))
    compare(torch.nn.Parameter(X), X)


def test_a_finer_result_is_right_unless_the_dtype_is_the_point():
    compare(X.double(), X)
    with pytest.raises(Rejected, match="dtype float64, expected float32"):
        compare(X.double(), X, same_dtype=True)
    with pytest.raises(Rejected, match="dtype float64, expected float16"):
        compare(X.double(), X.half())


def test_unchanged_and_fresh():
    with unchanged(x=X, n=[1]):
        X.sum()
    numbers = [1]
    with pytest.raises(Rejected, match="modified its input `numbers`"), unchanged(numbers=numbers):
        numbers.append(2)
    x = X.clone()
    with pytest.raises(Rejected, match="modified its input `x`"), unchanged(x=x):
        x.add_(1)
    with unchanged(x=NAN):
        pass
    fresh(x.clone(), x=x)
    with pytest.raises(Rejected, match="a view of the input `x`"):
        fresh(x[1:], x=x)


def test_finite_and_raises():
    finite(X)
    with pytest.raises(Rejected, match="nan at row 1, column 0"):
        finite(NAN, axes=("row", "column"))
    raises(ValueError, int, "x")
    with pytest.raises(Rejected, match="should raise ValueError; it returned 1"):
        raises(ValueError, int, "1")
    with pytest.raises(TypeError):
        raises(ValueError, int, [])


def test_draws_repeat_with_their_seed():
    one, two, other = Draw(7), Draw(7), Draw(8)
    for draw in (lambda d: d.normal(3), lambda d: d.integers(0, 9, 4), lambda d: d.uniform(2, low=1, high=2), lambda d: d.permutation(5)):  # fmt: skip
        a, b, c = draw(one), draw(two), draw(other)
        assert torch.equal(a, b)
        assert a.shape == c.shape
    assert [one.integer(0, 100) for _ in range(5)] == [two.integer(0, 100) for _ in range(5)]
    assert one.choice("abc") == two.choice("abc")
    assert one.normal(2, dtype=torch.bfloat16).dtype is torch.bfloat16
