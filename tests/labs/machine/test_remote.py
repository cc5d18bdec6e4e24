"""Calls between two processes look as if they were made in one; what is sent is data, or refused."""

import copy
import socket
import threading
from collections import OrderedDict, deque
from fractions import Fraction

import numpy as np
import pytest
import torch

from twophase.scheduling.policy import by_priority
from twophase_labs.machine.checks import Rejected, compare, fresh, raises, reject, unchanged
from twophase_labs.machine.grading.remote import AnswerGone, Peer, Proxy, Rules, TrustedRules
from twophase_labs.machine.grading.wire import Reader, Table, WireError, Writer
from twophase_labs.machine.unfilled import Unfilled, UnfilledError

BY_NAME = {}


@pytest.fixture
def answer():
    """The check's end; `answer("f")` is a stand-in for a function below, which runs at the other end."""
    mine, its = socket.socketpair()
    check = Peer(mine, TrustedRules("tests"))
    other = Peer(its, Rules(), {"fetch": BY_NAME.__getitem__})
    thread = threading.Thread(target=other.serve, daemon=True)
    thread.start()
    yield lambda name: check.ask("fetch", name)
    mine.close()
    thread.join(5)
    its.close()


def answers(function):
    BY_NAME[function.__name__] = function
    return function


@answers
def same(value):
    return value


VALUES = [
    None, True, 0, -1, 2**70, 1.5, float("inf"), 1j, "é\ud800", b"x", (1, (2,)), [1, [2]], {"a": {1: 2}}, {1, 2},
    frozenset({1}), slice(1, None, 2), range(1, 9, 2), ..., torch.float16, torch.device("cpu"), torch.Size([2, 3]),
    Fraction(1, 3),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_arrive_as_they_are(answer, value):
    got = answer("same")(value)
    assert type(got) is type(value)
    assert got == value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensors_arrive_with_dtype_and_strides(answer, dtype):
    value = torch.arange(24).reshape(2, 3, 4).to(dtype).transpose(0, 2)[:, 1:]
    got = answer("same")(value)
    assert got is value
    other = answer("copied")(value)
    assert (other.dtype, other.stride()) == (value.dtype, value.stride())
    assert torch.equal(other, value)
    assert answer("same")(torch.empty(0, 3)).shape == (0, 3)


@answers
def copied(value):
    return copy.deepcopy(value)


@answers
def odd(what):
    class Lie(int):
        def __ne__(self, other):
            return False

    return {
        "int": Lie(3),
        "float": np.float32(0.5),
        "numpy": np.int64(7),
        "dict": OrderedDict(a=1),
        "tuple": (Lie(1),),
    }[what]


@pytest.mark.parametrize(
    ("what", "plain"), [("int", 3), ("float", 0.5), ("numpy", 7), ("dict", {"a": 1}), ("tuple", (1,))]
)
def test_what_an_answer_gives_becomes_plain(answer, what, plain):
    got = answer("odd")(what)
    assert type(got) is type(plain)
    assert got == plain


def test_numpy_arrays_are_changed_in_place(answer):
    array = np.arange(6.0).reshape(2, 3)
    answer("doubled")(array)
    assert array.tolist() == [[0, 2, 4], [6, 8, 10]]


@answers
def doubled(x):
    x *= 2
    return x


@answers
def appended(items, table):
    items.append(len(items))
    table["new"] = items
    return items


def test_lists_and_dicts_are_changed_in_place_and_keep_their_identity(answer):
    items, table = [5], {}
    got = answer("appended")(items, table)
    assert got is items is table["new"]
    assert items == [5, 1]
    with pytest.raises(Rejected, match="modified its input `items`"), unchanged(items=items):
        answer("appended")(items, {})


@answers
def part(x):
    return x[1:]


@answers
def grown(x):
    x.resize_(5).fill_(1)


def test_tensors_are_changed_in_place_and_views_stay_views(answer):
    x = torch.ones(3)
    base = torch.zeros(2, 3)
    with pytest.raises(Rejected, match="modified its input `x`"), unchanged(x=x):
        assert answer("doubled")(x) is x
    answer("doubled")(base[1].add_(1))
    assert base.tolist() == [[0, 0, 0], [2, 2, 2]]
    with pytest.raises(Rejected, match="a view of the input `x`"):
        fresh(answer("part")(x), x=x)
    fresh(answer("copied")(x), x=x)
    answer("grown")(x)
    assert x.tolist() == [1] * 5


class Model:
    """A check's object."""

    def __init__(self):
        self.asked = []
        self.weights = torch.ones(2)

    def next(self, ids):
        self.asked.append(list(ids))
        if len(ids) > 3:
            reject("too long a text")
        return len(ids)


@answers
def generate(model, ids, num_new):
    for _ in range(num_new):
        ids.append(model.next(ids))
    return ids


def test_a_checks_object_is_called_and_counts_outside(answer):
    model, ids = Model(), [7]
    assert answer("generate")(model, ids, 2) is ids
    assert ids == [7, 1, 2]
    assert model.asked == [[7], [7, 1]]
    with pytest.raises(Rejected, match="too long a text"):
        answer("generate")(model, ids, 2)


@answers
def pries(what, value):
    return {
        "reads what is private": lambda: value.__class__,
        "reads a function's globals": lambda: value.next.__func__,
        "writes": lambda: setattr(value, "asked", []),
        "forgets its calls": lambda: value.asked.clear(),
        "changes weights": lambda: len(value.weights.zero_()),
        "makes another": lambda: type(value)(),
        "calls": lambda: value(),
    }[what]()


@pytest.mark.parametrize(
    "what", ["reads what is private", "reads a function's globals", "writes", "makes another", "calls"]
)
def test_a_checks_object_shows_what_is_public_and_no_more(answer, what):
    if what == "reads what is private":
        assert answer("pries")(what, Model()) is not Model
    else:
        with pytest.raises((AttributeError, TypeError)):
            answer("pries")(what, Model())


def test_what_an_answer_reads_is_a_copy(answer):
    model = Model()
    answer("pries")("changes weights", model)
    assert model.weights.tolist() == [1, 1]
    model.next([1])
    answer("pries")("forgets its calls", model)
    assert model.asked == [[1]]


@answers
def counter(start):
    class Counter:
        def __init__(self):
            self.value = start

        def step(self):
            self.value += 1
            return self.value

        def __eq__(self, other):
            return True

        def __len__(self):
            return self.value

        def __iter__(self):
            yield from range(self.value)

    return Counter()


def test_an_answers_object_is_used_from_outside(answer):
    got = answer("counter")(2)
    assert isinstance(got, Proxy)
    assert (got.step(), got.value, len(got), list(got)) == (3, 3, 3, [0, 1, 2])
    assert got != 5, "an answer's object says of itself that it equals something"
    with pytest.raises(Rejected, match="is a Counter, expected an int"):
        compare(got, 5)


@answers
def fails(how):
    class Odd(LookupError):
        def __str__(self):
            return 1 / 0

    raise {
        "value": ValueError("so"), "key": KeyError("k"), "odd": Odd(), "refusal": Rejected("mine"),
        "interrupt": KeyboardInterrupt("now"), "blank": UnfilledError("1.1", 2), "stop": StopIteration(3),
    }[how]  # fmt: skip


def test_exceptions_keep_their_kind(answer):
    raises(ValueError, answer("fails"), "value")
    raises(LookupError, answer("fails"), "odd")
    with pytest.raises(KeyError, match="'k'") as caught:
        answer("fails")("key")
    assert type(caught.value).__name__ == "KeyError"
    with pytest.raises(UnfilledError, match=r"Exercise 1\.1, blank 2 is still empty"):
        answer("fails")("blank")
    for how in ("refusal", "interrupt"):  # neither a check's own verdict nor the end of the check
        with pytest.raises(Exception) as caught:
            answer("fails")(how)
        assert not isinstance(caught.value, Rejected | KeyboardInterrupt)


def test_what_cannot_leave_is_named_and_harms_nothing(answer):
    with pytest.raises(WireError, match="an object of type module cannot leave the check"):
        answer("same")(torch)
    nested = []
    for _ in range(100):
        nested = [nested]
    with pytest.raises(WireError, match="nested more than 64 deep"):
        answer("same")(nested)
    assert answer("same")(by_priority) is by_priority
    assert list(answer("same")(deque([1]))) == [1]
    assert repr(answer("same")([Unfilled("1.1", 1)])[0]) == "<Exercise 1.1, blank 1 is still empty>"


def mangled(data):
    for at in range(len(data)):
        yield data[:at]
        for byte in (0, 0x7F, 0xFF, ord("x"), ord("r"), ord("h")):
            yield data[:at] + bytes([byte]) + data[at + 1 :]


def test_a_mangled_message_is_refused_or_read_but_never_more():
    peer = Peer(None, TrustedRules("tests"))
    value = ("gave", [1, {"a": torch.ones(2, 3)[:, 1:]}, np.ones(2), (2.0, "s"), slice(1, 2), Fraction(1, 2)])
    data = bytes(Writer(Table(), peer).message(value))
    for wrong in mangled(data):
        try:
            Reader(memoryview(wrong), Table(), peer).message()
        except WireError:
            continue


@pytest.mark.parametrize(
    "line", [b"\x00" * 7, b"\xff" * 8, b"\x01" + bytes(7) + b"N", b"\x09" + bytes(7) + bytes(8) + b"N"], ids=repr
)
def test_an_end_that_breaks_the_protocol_is_gone(line):
    mine, its = socket.socketpair()
    peer = Peer(mine, TrustedRules("tests"))
    with mine, its:
        its.sendall(line)
        its.shutdown(socket.SHUT_WR)
        with pytest.raises(AnswerGone):
            peer.ask("fetch", "same")
    assert peer.is_gone
