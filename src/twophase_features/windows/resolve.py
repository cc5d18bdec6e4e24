"""The windows that a model's layers see, and what follows from them for its attention and its cache."""

from dataclasses import dataclass, replace
from functools import partial
from typing import final

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.cache.manager import CacheManager
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.model.config import ModelConfig
from twophase.scheduling.limits import SchedulerConfig
from twophase_features.offloading.tier import KVTier
from twophase_features.windows.layer_groups import LayerGroups, layer_groups
from twophase_features.windows.sliding_window import SlidingWindow
from twophase_features.windows.windowed_cache import WindowedCache


@final
@dataclass(frozen=True, slots=True)
class Windows:
    """Which keys the queries of a model's layers see.

    Attributes:
        window: The window, the model's own or a narrower one; of a mixed model, the window of its sliding layers.
        groups: The groups of a mixed model's layers; None: all layers see the window.
    """

    window: SlidingWindow
    groups: LayerGroups | None = None

    def narrowed(self, spec: AttentionSpec) -> AttentionSpec:
        """The attention of layers of one kind, with this window and its sinks. A mixed model's attention stays."""
        if self.groups is not None:
            return spec
        return replace(spec, window=self.window.window, num_sinks=self.window.num_sinks)

    def num_useful_blocks(self, limits: SchedulerConfig, block_size: int) -> int:
        """The most blocks that could be used at once: each group of layers has its own, a sequence keeps a window's in
        the groups that see one, and a step's tokens are written before blocks are freed."""
        whole = limits.max_num_seqs * -(-limits.max_model_len // block_size)
        kept = limits.max_num_seqs * self.window.max_blocks(block_size)
        in_window = min(whole, kept + -(-limits.max_num_batched_tokens // block_size))
        return sum(whole if is_full else in_window for is_full in self._sees_all)

    def cache_factory(self, tier: KVTier | None) -> "partial[WindowedCache]":
        """Makes a cache that frees what leaves the window, as `EngineConfig.cache_factory`."""
        return partial(WindowedCache, window=self.window, sees_all=self._sees_all, tier=tier)

    @property
    def _sees_all(self) -> tuple[bool, ...]:
        return (False,) if self.groups is None else self.groups.sees_all


def resolve_windows(config: ModelConfig, options: EngineConfig) -> Windows | None:
    """The model's windows, or the windows that the options ask for; None: queries see all keys, or it is unknown.

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
                f"{num_sinks} and no window: the model has no window; without sliding_window=... all keys are visible."
            )
        return None
    if config.sliding_window is not None and width > config.sliding_window:
        raise ConfigError(
            f"sliding_window can narrow the model's own window of {config.sliding_window} keys and not widen it: its "
            f"weights have never seen a key farther away; got {width}. Leave it out, or ask for at most "
            f"{config.sliding_window}."
        )
    if isinstance(options.attention_backend, AttentionBackend):
        return None  # it sees the keys that it was made for; `pairs` has refused a window that was asked for
    return Windows(SlidingWindow(width, num_sinks), layer_groups(config))
