"""Swim lanes from the timeline that was made by hand."""

from tests.tools.load.timeline import RECORDS, STEPS, A, B, C, D, step
from twophase_tools.load import lanes
from twophase_tools.load.records import RequestRecord


def spans(lane):
    return [(span.kind, span.start_s, span.end_s) for span in lane.spans]


def test_every_lane_by_hand():
    found = {lane.name: lane for lane in lanes.lanes_of(RECORDS, STEPS)}
    assert list(found) == ["A", "B", "C", "D"]
    assert spans(found["A"]) == [
        ("waiting", 0, 1),
        ("prefill", 1, 9),
        ("decode", 11, 19),
        ("decode", 21, 29),
        ("paused", 29, 50),  # passed over in step 3, which another request got
        ("preempted", 50, 61),
        ("prefill", 61, 69),
    ]
    assert spans(found["B"]) == [("waiting", 4, 11), ("prefill", 11, 19), ("prefill", 21, 29), ("decode", 41, 49)]
    assert spans(found["C"]) == [("waiting", 12, 51), ("prefill", 51, 59)]
    assert spans(found["D"]) == [("waiting", 15, 65)]
    assert found["A"].token_times_s == (10, 20, 30, 70)
    assert [(span.step, span.start, span.num_tokens) for span in found["B"].spans[1:]] == [
        (1, 0, 3),
        (2, 3, 2),
        (3, 5, 1),
    ]


def test_lanes_are_by_arrival_and_never_overlap():
    found = lanes.lanes_of([D, C, B, A], STEPS)
    assert [lane.name for lane in found] == ["A", "B", "C", "D"]
    for lane in found:
        for earlier, later in zip(lane.spans, lane.spans[1:], strict=False):
            assert earlier.start_s < earlier.end_s <= later.start_s


def test_what_has_not_ended_lasts_until_the_diary_does():
    waiting = RequestRecord("W", 5, None, (), None, 3)
    preempted = RequestRecord("A", 0, 1, (10, 20, 30), None, 8, num_preemptions=1)
    found = lanes.lanes_of([waiting, preempted], STEPS[:5])
    assert spans(found[0])[-1] == ("preempted", 50, 60)
    assert spans(found[1]) == [("waiting", 5, 60)]


def test_a_diary_that_begins_late_or_is_empty():
    late = lanes.lanes_of([A], STEPS[2:])[0]
    assert spans(late)[:2] == [("waiting", 0, 1), ("decode", 21, 29)]
    alone = lanes.lanes_of([A], [])[0]
    assert spans(alone) == [("waiting", 0, 1)]
    nobody = RequestRecord("N", 5, None, (), None, 3)
    assert lanes.lanes_of([nobody], [])[0].spans == ()
    assert lanes.lanes_of([nobody], [])[0].end_s == 5


def test_completions_that_fork_have_lanes_of_their_own():
    steps = [
        step(0, 0, [("A", 0, 0, 8)], 0, 2, 8),
        step(1, 10, [("A", 0, 8, 1), ("A", 1, 8, 1)], 2, 3, 10),
    ]
    record = RequestRecord("A", 0, 1, (10, 20), 20, 8, finish_reason="length", num_sibling_tokens=2)
    first, second = lanes.lanes_of([record], steps)
    assert (first.name, second.name) == ("A", "A.1")
    assert spans(second) == [("decode", 11, 19)]
    assert second.token_times_s == (20,)
