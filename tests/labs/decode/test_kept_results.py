"""Answers that keep, and use again, what they returned. The grader sees copies of results, so only `check` finds them."""

from types import SimpleNamespace

import pytest
import torch

from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase_labs.decode.exercises.allocator import leaves_lists_to_their_owners
from twophase_labs.decode.exercises.split_kv import gives_results_of_its_own
from twophase_labs.machine.bank import right
from twophase_labs.machine.checks import Draw, Rejected
from twophase_labs.machine.lab import Workbook

KEPT_LIST = (
    *("self.num_blocks = num_blocks", "self.num_blocks, self.taken = num_blocks, []"),
    *("return len(self.free_ids)", "return self.num_blocks - len(self.taken)"),
    *(
        "return block_ids",
        "if self.taken:\n            self.taken.extend(block_ids)\n        else:\n            self.taken = block_ids\n"
        "        return block_ids",
    ),
    *("self.free_ids.append(block_id)", "self.free_ids.append(block_id)\n            self.taken.remove(block_id)"),
)
KEPT_MERGED = ("return out, m", "return KEPT.setdefault(out.shape, out).copy_(out), m")


@pytest.mark.parametrize(
    ("exercise", "change", "test", "case", "message"),
    [
        ("3.2", KEPT_LIST, leaves_lists_to_their_owners, {"num_taken": 0}, "num_free, once"),
        ("3.10", KEPT_MERGED, gives_results_of_its_own, {"splits": 3}, "changed `out` of the first"),
    ],
)
def test_a_kept_result_is_found(exercise, change, test, case, message):
    names = {"torch": torch, "OutOfBlocksError": OutOfBlocksError, "CacheStateError": CacheStateError, "KEPT": {}}
    exec(right("keeps it", *change).source(Workbook.find().lab("03").templates[exercise]), names)
    with pytest.raises(Rejected, match=message):
        test(SimpleNamespace(**names), Draw(0), **case)
