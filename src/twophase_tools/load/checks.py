"""Rules for the numbers that describe a workload."""

import math

from twophase.core.errors import ConfigError

LEAST, MOST = 1e-9, 1e9  # of a rate, say: squares and quotients of such numbers are far from a float's limits


def require_positive(name: str, value: float | int, unit: str = "") -> None:
    """Raises ConfigError unless `value` is finite, above 0, and of a size that can be computed with."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a finite number above 0{unit and f' ({unit})'}, got {value!r}.")
    if not LEAST <= value <= MOST:
        raise ConfigError(f"{name} must be in [{LEAST:g}, {MOST:g}]{unit and f' ({unit})'}, got {value!r}.")


def require_at_least(name: str, value: int, least: int) -> None:
    """Raises ConfigError if `value` is below `least`."""
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value!r}.")
