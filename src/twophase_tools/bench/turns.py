"""Several ways of doing one piece of work, in turns: a slow minute of the machine hurts all of them."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from twophase.core.errors import ConfigError

T = TypeVar("T")
Say = Callable[[str], None]


def in_turns(
    ways: Mapping[str, Callable[[int], T]],
    rounds: int,
    still_racing: Callable[[Mapping[str, Sequence[T]]], Iterable[str]] = lambda found: found,
) -> dict[str, list[T]]:
    """What each way gave, by name, in `rounds` rounds after one that only warms up.

    Args:
        ways: Name -> the work, which gets the number of the round; 0 is the warm-up.
        still_racing: Asked before each round that counts: who takes part, given what was found so far.

    Raises:
        ConfigError: No round.
    """
    if rounds < 1:
        raise ConfigError(f"--repeats must be at least 1, got {rounds}.")
    found: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        names = list(ways if number == 0 else still_racing(found))
        # Who comes second finds a warmer machine, or a hotter one: so each is second as often.
        for name in names if number % 2 else reversed(names):
            result = ways[name](number)
            if number:
                found[name].append(result)
    return found


def elapsed_s(work: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def median_of(results: Iterable[T], value: Callable[[T], float | int]) -> float:
    return float(statistics.median(value(result) for result in results))
