"""Answers that keep, and use again, what they returned. The grader sees copies of results, so only `check` finds them."""

from types import SimpleNamespace

import pytest
import torch

from tests.labs.decode import answers_second_author as answers
from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase_labs.decode.exercises.allocator import leaves_lists_to_their_owners
from twophase_labs.decode.exercises.gathered_blocks import leaves_its_inputs_alone
from twophase_labs.decode.exercises.split_kv import gives_results_of_its_own
from twophase_labs.machine.checks import Draw, Rejected

NAMES = {"torch": torch, "OutOfBlocksError": OutOfBlocksError, "CacheStateError": CacheStateError}


@pytest.mark.parametrize(
    ("test", "source", "case", "message"),
    [
        (leaves_lists_to_their_owners, answers.RETURNS_THE_LIST_THAT_IT_KEEPS_3_3, {"num_taken": 0}, "num_free, once"),
        (leaves_its_inputs_alone, answers.AN_OUTPUT_KEPT_BY_SHAPE_3_7, {}, "changed `out` of the first"),
        (gives_results_of_its_own, answers.AN_OUTPUT_KEPT_BY_SHAPE_3_12, {"splits": 3}, "changed `out` of the first"),
    ],
    ids=["3.3", "3.7", "3.12"],
)
def test_a_kept_result_is_found(test, source, case, message):
    answer = dict(NAMES)
    exec(source, answer)
    with pytest.raises(Rejected, match=message):
        test(SimpleNamespace(**answer), Draw(0), **case)
