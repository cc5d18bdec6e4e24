"""What the sections on canaries, several completions and bottlenecks are made of; no model is opened."""

import pytest

from twophase_labs.operations import bottlenecks, canary_traffic, more_samples
from twophase_labs.operations.canary_gate import lost, wilson
from twophase_labs.operations.shadow import SLICES

TASK = more_samples.Sum(4, 3, 6)
SAME = dict.fromkeys(SLICES, 0.9)


def test_an_interval_holds_its_rate_and_narrows():
    before = (0.0, 1.0)
    for num in (0, 10, 100, 1000):
        low, high = wilson(num * 9 // 10, num)
        assert low <= 0.9 <= high
        assert high - low < before[1] - before[0] or num == 0
        before = low, high


def test_a_loss_is_signed_and_unknown_without_requests():
    low, high = lost((900, 1000), (700, 1000))
    assert low < 0.2 < high
    gain = lost((700, 1000), (900, 1000))
    assert gain == pytest.approx((-high, -low))
    low, high = lost((900, 1000), (0, 0))
    assert low < -0.05
    assert high > 0.35


def test_a_growing_share_only_adds_tenants():
    sides = [[canary_traffic.is_canary(str(n), share, "v2") for n in range(2000)] for share in (0.0, 0.1, 0.3, 1.0)]
    assert [sum(side) for side in sides[::3]] == [0, 2000]
    assert 140 < sum(sides[1]) < 260
    assert all(small <= large for small, large in zip(sides[1], sides[2], strict=True))


@pytest.mark.parametrize(
    ("text", "adds_up", "is_derived"),
    [
        (" 4 + 3 = 7, 7 + 6 = 13", True, True),
        (" 4 + 3 = 7, 7 + 6 = 14", False, False),
        (" 4 + 3 = 7, 7 + 5 = 12", True, False),
        (" 3 + 4 = 7, 7 + 6 = 13", True, False),
        (" 4 + 3 = 7", True, False),
        (" 4 + 3 = 7, 7 + 6 = 13, 13 +", True, True),
        (" 4 + 3 = 7, 7 + 6 = 13, 13 + 6 =", True, False),
        (" 4 + 3 + 6 = 13", False, False),
        ("", False, False),
    ],
)
def test_verifiers(text, adds_up, is_derived):
    assert (more_samples.adds_up(text), more_samples.is_derived(TASK, text)) == (adds_up, is_derived)


def test_no_gain_exceeds_the_part():
    """Amdahl's bound: what an improvement touches, if it cost nothing at all."""
    for service in bottlenecks.SERVICES:
        total = sum(service.parts.values())
        for letter, left in bottlenecks.IMPROVEMENTS.items():
            bound = total / (total - sum(service.parts[part] for part in left))
            assert 1 <= service.gain(letter) <= bound + 1e-9
