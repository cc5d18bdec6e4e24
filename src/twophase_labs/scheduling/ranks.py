"""What a sort key may be, asked before the engine does, in words about the learner's own function."""

from typing import Any

from twophase.cache.manager import CacheManager
from twophase.core.request import Request, SamplingParams
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase.scheduling.scheduler import Scheduler
from twophase_labs.machine.checks import number, reject


def is_rank(rank: Any) -> bool:
    """Tuples may be nested, as for the engine."""
    return isinstance(rank, tuple) and all(number(one) is not None or is_rank(one) for one in rank)


def require_rank(policy: Policy) -> None:
    """Rejects a policy that ranks a sequence by anything but a tuple of numbers."""
    scheduler = Scheduler(
        SchedulerConfig(4, 64, 256), CacheManager(64, 4, enable_prefix_caching=False), PriorityPolicy()
    )
    scheduler.add(Request("A", (0, 0, 0), SamplingParams(max_tokens=5)))
    (sequence,) = scheduler.sequences.values()
    rank = policy.rank(sequence)
    if not is_rank(rank):
        reject(f"{type(policy).__name__}.rank returned {rank!r}; a rank is a tuple of numbers, such as (3, 0)")
