"""Rules for the numbers that describe a workload."""

import math

from twophase.core.errors import ConfigError


def require_positive(name: str, value: float | int, unit: str = "") -> None:
    """Raises ConfigError unless `value` is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a finite number above 0{unit and f' ({unit})'}, got {value!r}.")


def require_at_least(name: str, value: int, least: int) -> None:
    """Raises ConfigError if `value` is below `least`."""
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value!r}.")
