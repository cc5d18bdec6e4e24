"""Requirements of the options that ask for a KV tier. Nothing heavy is imported."""

from typing import Any

from twophase.core.errors import ConfigError


def check_options(config: Any) -> None:
    """Check `kv_tier`, `preemption_mode` and `num_swap_blocks` of an `EngineConfig`. Raises ConfigError if two of them
    contradict each other, or another option leaves out what a tier needs."""
    swaps = config.preemption_mode == "swap"
    if config.num_swap_blocks is not None and not swaps:
        raise ConfigError(
            f"num_swap_blocks sizes the host memory of preemption_mode='swap'; got {config.num_swap_blocks} with "
            f"preemption_mode={config.preemption_mode!r}."
        )
    if config.kv_tier is not None and swaps:
        raise ConfigError("preemption_mode='swap' makes a kv_tier of its own; give one of them.")
    tier = "preemption_mode='swap'" if swaps else "kv_tier"
    if not config.enable_prefix_caching:
        raise ConfigError(f"{tier} finds blocks by their prefix-cache hashes: leave enable_prefix_caching on.")
    if config.cache_factory is not None:
        raise ConfigError(f"{tier} is asked by the engine's own CacheManager; leave cache_factory out.")
