"""What the two sides of a disaggregated engine say to each other. Plain data; it travels pickled between equals.

decode side (rank 0)                         prefill side
                        <- Hello             when it is ready
Submit ->                                    a prompt to compute, and the blocks to send
                        <- Pages             layer by layer, as they are computed, and chunk by chunk
                        <- Done              all its pages have gone before
Submit ->                                    pages are missing: the same prompt, and the blocks to send once more
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twophase.cache.kv_cache import KVCacheSpec
from twophase.cache.tier import BlockKey
from twophase.model.config import ModelConfig
from twophase.scheduling.limits import SchedulerConfig
from twophase_features.parallel._transfers import TransferRecord


@dataclass(frozen=True, slots=True)
class Hello:
    """A prefill worker is ready: what it serves, and within which limits."""

    model: ModelConfig
    spec: KVCacheSpec
    limits: SchedulerConfig
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Compute this prompt, of whole blocks, and send its last blocks, which have these `keys`."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    cache_salt: str
    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class Pages:
    """One layer of the blocks with these keys. A key says what its block holds, so pages that come late are never taken
    for another prompt's.

    Attributes:
        parts: What `pack_layer` returns, as NumPy arrays on their way.
    """

    keys: tuple[BlockKey, ...]
    layer: int
    parts: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Done:
    """A prompt is computed and all its pages have been sent.

    Attributes:
        queue_s, prefill_s: From its submission to its first chunk, and from there to its end.
        num_cached_tokens: Prompt tokens found in the prefix cache of the prefill side.
        transfers: Those since the last prompt that was done.
    """

    request_id: str
    queue_s: float
    prefill_s: float
    num_cached_tokens: int
    transfers: tuple[TransferRecord, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The prompt could not be computed."""

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The pages of this request are not wanted any more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The last message of either side."""


Message = Hello | Submit | Pages | Done | Failed | Cancel | Bye
