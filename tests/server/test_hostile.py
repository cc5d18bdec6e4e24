"""Hostile but valid requests leave the other clients alone: the soak of `hostile.py`, in short."""

import asyncio

import pytest

from tests.server.hostile import REQUESTS, Seen, broken_promises, soak

MIB = 2**20


@pytest.mark.full
def test_hostile_requests_leave_the_others_alone():
    seen, _ = asyncio.run(soak(60.0))
    # Memory takes minutes to settle, and a test says nothing of time: that is the command's matter, on a quiet machine.
    assert {name for name, _ in seen[1].answers + seen[2].answers} >= set(REQUESTS)
    assert all(part.num_chunks > 0 for part in seen)


def test_each_promise_can_be_broken():
    calm, good = Seen(longest_gap_s=0.2), Seen(longest_gap_s=1.1, longest_health_s=0.9)
    assert broken_promises([calm, good, good], [100 * MIB, 120 * MIB, 121 * MIB]) == []
    late, deaf = Seen(longest_gap_s=1.3), Seen(longest_health_s=1.1)
    assert len(broken_promises([calm, good, late], [MIB, MIB, MIB])) == 1
    assert len(broken_promises([calm, deaf, good], [MIB, MIB, MIB])) == 1
    assert len(broken_promises([calm, good, good], [MIB, 100 * MIB, 106 * MIB])) == 1
