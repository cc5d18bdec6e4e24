"""Several ways of doing one piece of work, in turns: a slow minute of the machine hurts all of them."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from twophase.core.errors import ConfigError

T = TypeVar("T")
Say = Callable[[str], None]


def in_turns(ways: Mapping[str, Callable[[int], T]], rounds: int) -> dict[str, list[T]]:
    """What each way gave, by name, in `rounds` rounds after one that only warms up.

    Args:
        ways: Name -> the work, which gets the number of the round; 0 is the warm-up.

    Raises:
        ConfigError: No round.
    """
    if rounds < 1:
        raise ConfigError(f"--repeats must be at least 1, got {rounds}.")
    found: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        # The second of two ways finds a warmer machine, or a hotter one: so each is second as often.
        for name in list(ways) if number % 2 else list(ways)[::-1]:
            result = ways[name](number)
            if number:
                found[name].append(result)
    return found
