"""What the checks of 4.6 and 4.10 tell a learner besides that something fails."""

from types import SimpleNamespace

import pytest

from twophase_labs.machine.checks import Draw, Rejected
from twophase_labs.scheduling import challenge
from twophase_labs.scheduling.exercises import metrics, open_challenge

TIME_COUNTS = (
    "Bound the time of a step, not its tokens: the keys that its decodes read, and the pairs of its chunks, count as "
    "well."
)


def told(monkeypatch, check, **columns):
    entry = challenge.Entry("yours", goodput_per_s=1.0, **columns)
    monkeypatch.setattr(open_challenge, "on_the_board", lambda answer: entry)
    monkeypatch.setattr(open_challenge, "default_entry", lambda: challenge.Entry("the default", 50.0, 1.0, 70.0, 60.0))
    with pytest.raises(Rejected) as caught:
        check(None, Draw(0))
    return caught.value.details


@pytest.mark.parametrize("check", [open_challenge.beats_the_default, open_challenge.reaches_the_goal])
def test_steps_that_take_too_long_are_told_from_a_long_queue(monkeypatch, check):
    assert TIME_COUNTS in told(monkeypatch, check, score=53.0, in_time=93.0, smooth=59.0)
    assert TIME_COUNTS not in told(monkeypatch, check, score=53.0, in_time=60.0, smooth=98.0)


def test_the_second_hint_says_so_too():
    assert open_challenge.CHALLENGE.hints[1].endswith(TIME_COUNTS)


def from_the_start(events):
    """Counts TTFT from the first step."""
    result = {}
    for name in {name for _, name, _ in events}:
        times_s = [[at for at, one, what in events if (one, what) == (name, kind)] for kind in ("start", "token")]
        gaps = [after - before for before, after in zip(times_s[1], times_s[1][1:], strict=False)]
        tpot_s = sum(gaps) / len(gaps) if gaps else None
        result[name] = {"ttft_s": times_s[1][0] - times_s[0][0], "itls_s": gaps, "tpot_s": tpot_s}
    return result


def test_wrong_latencies_are_told_with_the_events():
    answer = SimpleNamespace(latencies=from_the_start)
    with pytest.raises(Rejected) as caught:
        metrics.of_one(answer, Draw(0), "ttft_s")
    assert "(11.5, 'A', 'start')" in caught.value.details
    with pytest.raises(Rejected) as caught:
        metrics.of_many(answer, Draw(0), 6, most_tokens=60)
    told = caught.value.details[caught.value.details.index("events:") + 1 :]
    assert "'r0', 'arrival'" in told[0]
    assert len(told) <= metrics.MOST_SHOWN + 1
