"""Lab 4's loop in which nobody knows how long an answer becomes."""

import pytest

from twophase.core.errors import PolicyError
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase.scheduling.sequence import Sequence
from twophase_labs.scheduling.challenge import COST, LIMITS, POOL, traffic
from twophase_labs.scheduling.hidden_lengths import play
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.simulator import simulate
from twophase_tools.simulate.traffic import requests_of


def test_with_room_for_all_it_is_the_packages_simulator() -> None:
    """Lengths matter to admission alone; where all fit, times must agree to the last digit."""
    workload = traffic(3, num_requests=60)
    limits = POOL | LIMITS | {"num_blocks": 20_000}
    ours = play(workload, PriorityPolicy(), limits, COST).records
    theirs = simulate(requests_of(workload), make_scheduler(limits), COST).records
    times = [[record.token_times_s for record in records] for records in (ours, theirs)]
    assert times[0] == times[1]
    assert sum(map(len, times[0])) == sum(request.num_output_tokens for request in workload)


def test_the_policy_sees_no_lengths() -> None:
    seen: set[int] = set()

    class Curious(Policy):
        def rank(self, sequence: Sequence) -> tuple[int, ...]:
            seen.add(sequence.max_num_tokens - sequence.num_prompt_tokens)
            return (sequence.arrival_order, sequence.index)

        def plan(self, step: object) -> None:
            PriorityPolicy().plan(step)  # type: ignore[arg-type]

    play(traffic(1, num_requests=20), Curious(), POOL | LIMITS, COST)
    assert len(seen) == 1


def test_a_policy_that_never_schedules_is_told_so() -> None:
    class Idle(Policy):
        def rank(self, sequence: Sequence) -> tuple[int, ...]:
            return (sequence.arrival_order,)

        def plan(self, step: object) -> None:
            pass

    with pytest.raises(PolicyError, match="planned nothing"):
        play(traffic(1, num_requests=3), Idle(), POOL | LIMITS, COST)
