"""Limits of time: by the processor, so that a busy machine changes no verdict, and in the end by the clock."""

import signal
import time

import pytest

from twophase_labs.machine import limits
from twophase_labs.machine.limits import Allowance, OutOfTime, time_limit


def work(cpu_s: float) -> None:
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass


def test_waiting_for_others_is_not_counted_and_work_is_stopped():
    with time_limit(2.0):
        time.sleep(2.5)  # as a machine that others use makes a process wait
        work(0.2)
    with pytest.raises(OutOfTime), time_limit(0.3):
        work(3.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_code_that_sleeps_ends_as_well():
    begun = time.monotonic()
    with pytest.raises(OutOfTime), time_limit(0.2):
        time.sleep(60)
    assert time.monotonic() - begun >= limits.LOAD * 0.2 - 0.01


# In the last but one, eight threads: the clock has not spent it.
@pytest.mark.parametrize(
    ("cpu_s", "clock_s", "left_s"), [(4, 9, 6), (9, 12, 1), (10, 12, 0), (1, 28, 2), (30, 4, 6), (1, 30, 0)]
)
def test_what_is_left(monkeypatch, cpu_s, clock_s, left_s):
    now = {"cpu": 100.0, "clock": 500.0}
    monkeypatch.setattr(limits, "process_time", lambda: now["cpu"])
    monkeypatch.setattr(limits, "monotonic", lambda: now["clock"])
    allowance = Allowance(10)
    now = {"cpu": now["cpu"] + cpu_s, "clock": now["clock"] + clock_s}
    assert allowance.left_s() == pytest.approx(left_s)
