"""Memory in huge pages: the same addresses and contents, and no error where the system cannot."""

import functools
import mmap
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase_features.triton import huge_pages


def huge_kib() -> int:
    """This process's anonymous memory in huge pages."""
    return int(re.search(r"AnonHugePages: +([0-9]+) kB", Path("/proc/self/smaps_rollup").read_text())[1])


def in_small_pages(num_elements: int) -> torch.Tensor:
    """0, 1, 2, ... in memory of its own, which no freed huge page has been before."""
    memory = mmap.mmap(-1, 8 * num_elements, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    tensor = torch.frombuffer(memory, dtype=torch.int64).copy_(torch.arange(num_elements))
    memory.madvise(mmap.MADV_HUGEPAGE)  # allowed again
    return tensor


def check_moved(module) -> None:
    kib = huge_kib()
    tensors = [in_small_pages(3 * 2**20), torch.arange(5), in_small_pages(2**21).view(2, -1)[1]]
    before = [(tensor.clone(), tensor.data_ptr()) for tensor in tensors]
    moved = module.use_huge_pages(tensors)
    assert [tensor.data_ptr() for tensor in tensors] == [address for _, address in before]
    assert all(torch.equal(tensor, old) for tensor, (old, _) in zip(tensors, before, strict=True))
    assert moved <= 12 + 1 + 2 + 5, "24 and 8 MB, and a page more for each end"
    if moved:  # the system can do it; it may lack huge pages for some
        assert moved >= 8
        assert huge_kib() - kib >= 2048 * (moved - 4), "some were huge before"
    for advise in (None, lambda *range_and_advice: -1):  # another system, and one that refuses
        with patch.object(module, "_madvise", lambda advise=advise: advise):
            assert module.use_huge_pages([torch.zeros(2**20)]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="not run here: no Linux")
def test_moved():
    check_moved(huge_pages)


MUTANTS = [
    ("pages of no size", check_moved, "advise(page * PAGE_BYTES, PAGE_BYTES", "advise(page * PAGE_BYTES, 0"),
    ("refused pages count", check_moved, "MADV_COLLAPSE) == 0 for", "MADV_COLLAPSE) <= 0 for"),
    ("elements for bytes", check_moved, "tensor.numel() * tensor.itemsize", "tensor.numel()"),
]


@pytest.mark.skipif(
    sys.platform != "linux" or not huge_pages.use_huge_pages([torch.ones(2**20)]), reason="not run here: no huge pages"
)
@pytest.mark.mutants
@pytest.mark.parametrize(("name", "check", "old", "new"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(name, check, old, new):
    KillTable.record(Mutant(name, "twophase_features.triton.huge_pages", old, new), functools.partial(check))
