"""Types and shapes are enforced in the tests: a wrong one is noticed where it is passed, whatever it is annotated on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import jaxtyping
import pytest
import torch
from jaxtyping import Float, Int, TypeCheckError
from torch import Tensor

from tests.enforced_types import enforced
from twophase.attention.torch_backend import write_rows
from twophase.core.sampling_params import SamplingParams
from twophase.engine.engine import Engine

if TYPE_CHECKING:
    from nowhere import Unknown


@enforced
def product(x: Float[Tensor, "N M"], y: Float[Tensor, "M K"], transposed: bool = False) -> Float[Tensor, "N K"]:
    return (x @ y).T if transposed else x @ y


@enforced
def many(*parts: Float[Tensor, "N"], limit: int | None = None) -> list[Float[Tensor, "N"]]:
    return list(parts) if limit is None else [part[:limit] for part in parts]


@enforced
def quoted(this: "int", other: "Unknown", kind: Literal["a"] = "a") -> "str":
    return str(this) if other is None else other


@enforced
def counted(n: int) -> Iterator[Float[Tensor, "n"]]:
    yield from [torch.ones(n), torch.ones(n + 1)]


@enforced
@dataclass(frozen=True)
class Pair:
    x: Int[Tensor, "N"]
    y: Int[Tensor, "N"]
    next: "Pair | None" = None

    @property
    @enforced
    def size(self) -> int:
        return self.x.tolist()[0]


@enforced
class Named(Pair):
    """Without fields of its own: the checks are those of its base."""


WIDE = torch.ones(2, 3)

WRONG = {
    "a dtype": lambda: product(WIDE.int(), WIDE.T),
    "a number of axes": lambda: product(WIDE[0], WIDE.T),
    "an axis of two arguments": lambda: product(WIDE, WIDE),
    "an axis of the result": lambda: product(WIDE, torch.ones(3, 4), transposed=True),
    "a plain type": lambda: product(WIDE, WIDE.T, transposed=1),
    "one of many": lambda: many(torch.ones(2), torch.ones(3)),
    "an element of the result": lambda: many(torch.ones(2), limit=1),
    "a keyword": lambda: many(torch.ones(2), limit="1"),
    "a quoted type": lambda: quoted("1", None),
    "a quoted type of the result": lambda: quoted(1, 2),
    "a literal": lambda: quoted(1, None, "b"),
    "an argument of a generator": lambda: counted("1"),
    "a field": lambda: Pair([1], torch.ones(1).int()),
    "fields that disagree": lambda: Pair(torch.ones(1).int(), torch.ones(2).int()),
    "fields of a base that disagree": lambda: Named(torch.ones(1).int(), torch.ones(2).int()),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_noticed(what):
    with pytest.raises(TypeCheckError):
        WRONG[what]()


def test_what_is_right_passes():
    assert product(WIDE, WIDE.T).shape == (2, 2)
    assert len(many(torch.ones(2), torch.ones(2), limit=None)) == 2
    assert quoted(1, None) == "1"
    assert quoted(1, "its type is known to type checkers only") != "1"
    assert [len(part) for part in counted(1)] == [1, 2]
    assert Named(torch.ones(1).int(), torch.ones(1).int(), None).size == 1


def test_each_call_is_a_scope_of_its_own():
    """An axis is bound anew by every call, also by one inside another; and is not bound any more after an error."""

    @enforced
    def outer(x: Float[Tensor, "N"], call: Callable) -> Float[Tensor, "N"]:
        call()
        return x

    outer(torch.ones(5), lambda: many(torch.ones(2)))
    with pytest.raises(TypeCheckError):
        outer(torch.ones(5), lambda: many(torch.ones(2), torch.ones(3)))
    many(torch.ones(7), torch.ones(7))


def test_errors_and_names_are_those_of_the_function():
    with pytest.raises(TypeError, match=r"product\(\) missing 1 required positional argument: 'y'"):
        product(WIDE)
    assert (product.__name__, product.__doc__) == ("product", None)

    @enforced
    def raises(x: int) -> int:
        raise KeyError(x)

    with pytest.raises(KeyError):
        raises(1)


def test_it_can_be_switched_off(as_users_call_it):
    assert many(
        torch.ones(2),
        torch.ones(3),
    )
    assert quoted("1", None) == "1"


@pytest.fixture
def as_users_call_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_the_packages_are_enforced():
    with pytest.raises(TypeCheckError):
        SamplingParams(temperature=object())
    with pytest.raises(TypeCheckError):
        write_rows(torch.ones(4, 1, 2), None, torch.arange(2), torch.ones(2, 1, 2).int())
    assert Engine.step._types_are_enforced
