"""The window that a model's queries see: its own, or a narrower one that the user asks for."""

from collections.abc import Callable
from functools import partial

from twophase.attention.interface import AttentionBackend
from twophase.cache.manager import CacheManager
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.model.config import ModelConfig
from twophase_features.windows.layer_groups import LayerGroups
from twophase_features.windows.sliding_window import SlidingWindow


def resolve_window(config: ModelConfig, options: EngineConfig) -> SlidingWindow | None:
    """What queries see, of a mixed model those of its sliding layers; None: everything, or unknown.

    Raises:
        ConfigError: Sinks without a window, a window wider than the model's own, or a window or a number of
            sinks that cannot be; or a `cache_factory` for a mixed model.
    """
    if config.is_mixed and options.cache_factory not in (None, CacheManager):
        raise ConfigError(
            "cache_factory makes a cache for layers of one kind, and this model has some that see all keys and some "
            "that see a window: leave it out."
        )
    num_sinks = options.num_attention_sinks
    width = config.sliding_window if options.sliding_window is None else options.sliding_window
    if width is None:
        if num_sinks != 0:
            raise ConfigError(
                f"Attention sinks are the keys that stay visible outside a sliding window; got num_attention_sinks="
                f"{num_sinks} and no window: this model has none, so without sliding_window=... all keys are visible."
            )
        return None
    if config.sliding_window is not None and width > config.sliding_window:
        raise ConfigError(
            f"sliding_window can narrow the model's own window of {config.sliding_window} keys and not widen it: its "
            f"weights have never seen a key farther away; got {width}. Leave it out, or ask for at most "
            f"{config.sliding_window}."
        )
    if isinstance(options.attention_backend, AttentionBackend):
        return None  # it sees what it was made for; `pairs` has refused a window that was asked for
    return SlidingWindow(width, num_sinks)


def windowed_cache(window: SlidingWindow | None, groups: LayerGroups | None = None) -> Callable[..., CacheManager]:
    """A cache factory like the class itself, whose caches free what leaves the window, where layers see one."""
    if groups is None:
        return partial(CacheManager, window=window)
    return partial(CacheManager, window=window, sees_all=groups.sees_all)
