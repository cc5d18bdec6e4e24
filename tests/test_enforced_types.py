"""Types and shapes are enforced in the tests: a wrong one is noticed where it is passed, and mutants can do without."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from tests.enforced_types import TypeViolation, jaxtyped, unchecked_types
from twophase.attention.torch_backend import rotate, write_slots
from twophase.core.request import SamplingParams
from twophase.scheduling.limits import check_request


def write(blocks, x):
    write_slots(torch.ones(4, 1, 1, 2), None, blocks, torch.zeros(2).long(), x)


@pytest.mark.parametrize("name_shapes", [True, False])
def test_what_is_wrong_is_noticed(name_shapes):
    if name_shapes:
        with pytest.raises(TypeCheckError):
            write(torch.arange(2), torch.ones(2, 2))  # an axis is missing
        with pytest.raises(TypeCheckError):
            write(torch.ones(2), torch.ones(2, 1, 2))  # block ids are integers
        with pytest.raises(TypeCheckError):
            rotate(torch.ones(3, 1, 4), torch.ones(2, 1, 4), torch.ones(3, 1, 4))  # two positions for three tokens
        write(torch.arange(2), torch.ones(2, 1, 2))
    else:
        with pytest.raises(TypeViolation):
            check_request(object(), None, None)
        with pytest.raises(TypeViolation):
            SamplingParams(temperature=object())


checked = jaxtyped(typechecker=beartype)


@checked
def head(x: Float[Tensor, "n"], count: int) -> Float[Tensor, "n"]:
    return x[:count] + (0 * x[:1] if count > 1 else head(x[:1], 1))  # there n is another


@checked
def heads(x: Float[Tensor, "n"]) -> Iterator[Float[Tensor, "n"]]:
    yield x


@checked
@dataclass
class Two:
    one: Float[Tensor, "n"]
    other: Float[Tensor, "n"]


@checked
def of_a_kind(x: "Unknown", y: Float[Tensor, "n"], z: Float[Tensor, "n"]) -> None:
    pass


def test_a_name_of_an_axis_is_one_size_in_each_call():
    x, y = torch.ones(3), torch.ones(2)
    assert head(x, 3).shape == (3,)
    Two(x, x)
    of_a_kind(1, x, x)
    assert [*heads(x)] == [x]
    for wrong in (lambda: head(x, 2), lambda: Two(x, y), lambda: of_a_kind(1, x, y), lambda: heads(x[None])):
        with pytest.raises(TypeCheckError):
            wrong()
        with unchecked_types():
            wrong()


def test_mutants_do_without():
    for _ in range(2):  # as a warning that was shown once is not shown again
        with unchecked_types(), pytest.raises(AttributeError):
            check_request(object(), None, None)
        with pytest.raises(TypeViolation):
            check_request(object(), None, None)


@pytest.mark.unchecked_types
def test_so_does_what_is_marked():
    with pytest.raises(AttributeError):
        check_request(object(), None, None)
