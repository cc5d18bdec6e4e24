"""Types and shapes are enforced in the tests: a wrong one is noticed where it is passed, and mutants can do without."""

import pytest
import torch
from jaxtyping import TypeCheckError

from tests.enforced_types import TypeViolation, unchecked_types
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


def test_mutants_do_without():
    for _ in range(2):  # as a warning that was shown once is not shown again
        with unchecked_types(), pytest.raises(AttributeError):
            check_request(object(), None, None)
        with pytest.raises(TypeViolation):
            check_request(object(), None, None)
