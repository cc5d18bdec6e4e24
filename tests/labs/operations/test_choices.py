"""What the sections on canaries, several completions and bottlenecks are made of; no model is opened."""

import math

import pytest

from twophase_labs.operations import bottlenecks, canary_traffic, more_samples
from twophase_labs.operations.canary_gate import lost, wilson
from twophase_labs.operations.shadow import SLICES, _reads

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


def test_another_rollout_draws_other_tenants():
    one, other = ([canary_traffic.is_canary(str(n), 0.5, salt) for n in range(2000)] for salt in ("v2", "v3"))
    assert 860 < sum(a == b for a, b in zip(one, other, strict=True)) < 1140


def test_a_canary_sees_each_request_once():
    looks = canary_traffic.play({"before": SAME, "canary": SAME}, (300, 900), share=0.25, salt="x")
    for look in looks:
        assert look.before.total[1] + look.canary.total[1] == look.num_requests
        assert all(0 <= ok <= num for side in (look.before, look.canary) for ok, num in side.counts.values())
    assert 0.1 < looks[-1].canary.total[1] / 900 < 0.4


def test_a_slice_has_a_hard_line_of_its_own():
    [look] = canary_traffic.play({"before": SAME, "canary": SAME}, (500,), share=0.5, salt="x")
    names = {line.name: line.is_hard for line in canary_traffic.lines_of(look, by_slice=True)}
    assert names == {**dict.fromkeys(SLICES, True), "late first tokens": False}


def test_the_shares_of_habits_add_up():
    assert all(math.isclose(sum(shares), 1) for shares in canary_traffic.HABITS.values())
    assert math.isclose(sum(canary_traffic.KINDS.values()), 1)


def test_looking_often_raises_more_alarms():
    at_any_point, at_last, at_any, strict = canary_traffic.false_alarms(num_canaries=500).values()
    assert 0.005 < at_last < 0.05 < at_any < at_any_point
    assert strict < 0.03


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


def test_what_is_derived_is_right():
    """Whatever text is accepted, the number that is read from it is the task's result."""
    for a in (3, 4):
        for ab in (7, 8):
            for c in (5, 6):
                for end in (12, 13, 14):
                    text = f" {a} + 3 = {ab}, {ab} + {c} = {end}"
                    if more_samples.is_derived(TASK, text):
                        assert more_samples.last_number(text) == TASK.result


def test_an_orders_quantity_is_read():
    passes = _reads("Order 4471: 3 lamps for Mrs Ferreira, to be sent to Porto.")
    text = '{{"customer": "Mrs Ferreira", "item": "lamps", "quantity": {}, "city": "Porto"}}'
    assert passes(text.format(3))
    assert not passes(text.format(2))
    assert not passes("3")


def test_each_improvement_is_the_best_of_one_service():
    best = [max(bottlenecks.IMPROVEMENTS, key=service.gain) for service in bottlenecks.SERVICES]
    assert best == list("bdeac")


def test_no_gain_exceeds_the_part():
    """Amdahl's bound: what an improvement touches, if it cost nothing at all."""
    for service in bottlenecks.SERVICES:
        total = sum(service.parts.values())
        for letter, left in bottlenecks.IMPROVEMENTS.items():
            bound = total / (total - sum(service.parts[part] for part in left))
            assert 1 <= service.gain(letter) <= bound + 1e-9
