"""An engine's limits as plain data, and a scheduler that keeps them."""

from typing import Any

from twophase.cache.manager import CacheManager
from twophase.core.errors import ConfigError
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.policy import Policy
from twophase.scheduling.scheduler import Scheduler
from twophase_features.offloading.host_memory import HostMemoryTier


def make_scheduler(
    limits: dict[str, Any], policy: Policy | None = None, *, enable_prefix_caching: bool = False
) -> Scheduler:
    """A fresh scheduler with an engine's limits; raises ConfigError for limits that are not.

    Args:
        limits: Fields of `SchedulerConfig`, "num_blocks" and "block_size" of the pool, and "num_host_blocks" to offload
            to; the latter needs prefix caching and turns it on.
        enable_prefix_caching: As an `LLM` does by itself. A `Rig` does not: what it computes is to be measured.
    """
    options = dict(limits)
    try:
        num_host_blocks = options.pop("num_host_blocks", None)
        tier = None if num_host_blocks is None else HostMemoryTier(num_host_blocks)
        has_cache = enable_prefix_caching or tier is not None
        cache = CacheManager(options.pop("num_blocks"), options.pop("block_size"), has_cache, tier=tier)
        return Scheduler(SchedulerConfig(**options), cache, policy)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"these are not an engine's limits ({error}): {limits}.") from error
