"""The oldest request of a queue, by definition."""

import random
from types import ModuleType, SimpleNamespace

import pytest

from tests.mutation import KillTable, Mutant
from twophase_tools.simulate import waiting

pytestmark = pytest.mark.unchecked_types


def check_waiting(module: ModuleType) -> None:
    """Against the definition, at random: requests come in any order, are scheduled or end in any order."""
    rng = random.Random(5)
    queue, there = module.WaitingRequests(), []
    now_s = 0.0
    for _ in range(300):
        now_s += rng.random()
        if rng.random() < 0.5:
            request = SimpleNamespace(first_scheduled_s=None, finished_s=None)
            arrival_s = round(now_s - rng.random(), 1)  # some are equal
            queue.add(arrival_s, request)
            there.append((arrival_s, request))
        elif there:
            _, request = there.pop(rng.randrange(len(there)))
            setattr(request, rng.choice(["first_scheduled_s", "finished_s"]), now_s)
        ages_s = [max(0.0, now_s - arrival_s) for arrival_s, _ in there]
        assert queue.oldest_s(now_s) == max(ages_s, default=None)
    assert len(queue._heap) < 300


def test_the_queue_by_definition():
    check_waiting(waiting)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("who was scheduled waits", "request.first_scheduled_s is not None or request", "request"),
        (
            "who ended waits",
            "request.first_scheduled_s is not None or request.finished_s is not None",
            "request.first_scheduled_s is not None",
        ),
        ("the newest", "(arrival_s, next(self._numbers), request))", "(-arrival_s, next(self._numbers), request))"),
        ("equal arrivals", "next(self._numbers)", "0"),
        ("one of them", "while self._heap and _has_left", "if self._heap and _has_left"),
    ],
)
def test_mutants_of_the_queue_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_tools.simulate.waiting", old, new), check_waiting)
