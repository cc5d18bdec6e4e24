"""An engine's limits as plain data, and a scheduler that keeps them."""

from typing import Any

from twophase.cache.manager import CacheManager
from twophase.core.errors import ConfigError
from twophase.scheduling.config import SchedulerConfig
from twophase.scheduling.policy import Policy
from twophase.scheduling.scheduler import Scheduler


def make_scheduler(
    limits: dict[str, Any], policy: Policy | None = None, *, enable_prefix_caching: bool = False
) -> Scheduler:
    """A fresh scheduler with an engine's limits; raises ConfigError for limits that are not.

    Args:
        enable_prefix_caching: As an `LLM` does by itself. A `Rig` does not: what it computes is to be measured.
    """
    options = dict(limits)
    try:
        cache = CacheManager(options.pop("num_blocks"), options.pop("block_size"), enable_prefix_caching)
        return Scheduler(SchedulerConfig(**options), cache, policy)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"these are not an engine's limits ({error}): {limits}.") from error
