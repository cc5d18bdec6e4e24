"""Bugs planted in PTX: a wait, a barrier or a fence left out, each of those in a loop in turn.

All go through the emulator and must be noticed there.
"""

import dataclasses
import functools
import re

import pytest

from ptx_emulator import EmulationError, emulated
from tests.kernels.test_compiled import COMPILED_FOR, SMALL
from tests.kernels.test_paged_decode import check_lengths
from tests.kernels.test_paged_prefill import check_chunks
from tests.mutation import KillTable

pytest.importorskip("triton", reason="not run here: no triton")

LOOPING = dataclasses.replace(SMALL, heads=(4, 2), num_splits=1)
CHECKS = {
    "paged_decode": functools.partial(check_lengths, LOOPING, [300, 17]),
    "paged_prefill": functools.partial(check_chunks, LOOPING, [150, 33], [160, 70]),
}
ORDERS = re.compile(
    r"bar\.sync|cp\.async\.(?:wait|commit)_group|fence\.proxy\.async|wgmma\.(?:fence|commit_group|wait_group)"
)


def in_loops(lines):
    """The numbers of those lines that order what others do, between a label and a branch back to it."""
    labels = {match[1]: i for i, line in enumerate(lines) if (match := re.match(r"(\$L\w+):", line))}
    backward = [
        (labels[match[1]], i)
        for i, line in enumerate(lines)
        if (match := re.search(r"\bbra(?:\.uni)?\s+(\$L\w+);", line)) and labels[match[1]] < i
    ]
    return [i for i, line in enumerate(lines) if ORDERS.search(line) and any(a < i < b for a, b in backward)]


def drop_each(target, kernel):
    """[(what was left out, what was noticed or None)], one line at a time."""
    written = []
    with emulated(target, lambda ptx: written.append(ptx) or ptx):
        CHECKS[kernel]()
    lines = written[0].split("\n")
    outcomes = []
    for i in in_loops(lines):
        name, how = f"{target}, line {i}: no {' '.join(lines[i].split()).rstrip(';')}", None
        without = "\n".join([*lines[:i], *lines[i + 1 :]])
        try:
            with emulated(target, lambda _, without=without: without):
                CHECKS[kernel]()
        except (EmulationError, AssertionError) as error:
            how = str(error).splitlines()[0]
        outcomes.append((name, how))
    return outcomes


@pytest.mark.full
@pytest.mark.parametrize("target", COMPILED_FOR)
@pytest.mark.parametrize("kernel", CHECKS)
def test_nothing_that_orders_may_be_left_out(compiling, target, kernel):
    outcomes = compiling.call(drop_each, target, kernel)
    KillTable.rows += [
        (f"twophase_kernels.{kernel}", name, how) for name, how in outcomes if how or "wgmma.fence" not in name
    ]
    assert len(outcomes) >= 10
    kinds = {ORDERS.search(name)[0] for name, _ in outcomes}
    assert {"bar.sync", "cp.async.wait_group"} <= kinds
    assert ("wgmma.wait_group" in kinds and "fence.proxy.async" in kinds) == (
        (kernel, target) == ("paged_prefill", "sm_90")
    )
    # A loop with two products has two wgmma.fence; either orders all that came before, so one may be missed.
    assert [name for name, how in outcomes if how is None and "wgmma.fence" not in name] == []
    fences = [how for name, how in outcomes if "wgmma.fence" in name]
    assert not fences or any(fences)
