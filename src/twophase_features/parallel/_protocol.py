"""The messages between the two sides of a disaggregated engine: plain data, pickled between processes of one program.

decode side (rank 0)                         prefill side
                        <- Hello             when it is ready
Submit ->                                    a prompt to compute, and the blocks to send
                        <- Pages             layer by layer, as they are computed, and chunk by chunk
                        <- Done              all its pages have gone before
Submit ->                                    pages are missing: the same prompt, and the blocks to send once more
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from twophase.cache.kv_cache import KVCacheSpec
from twophase.core.plan import BlockKey
from twophase.model.config import ModelConfig
from twophase.scheduling.limits import SchedulerConfig


@dataclass(frozen=True, slots=True)
class Hello:
    """A prefill worker is ready. It serves this model, with pages of this `spec`, within these limits."""

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
    """One layer of the blocks with these keys: `parts` is what `pack_layer` returns, as NumPy arrays on their way. A
    key says what its block holds, so late pages are never taken for another prompt's."""

    keys: tuple[BlockKey, ...]
    layer: int
    parts: Sequence[Any]


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """The pages that one forward pass sent.

    Attributes:
        num_blocks, num_bytes: In all layers together.
        compute_s: The forward pass, packing included.
        pack_s: Copying pages into buffers, which the computing thread does itself: never hidden.
        send_s: Pages were being sent, by the thread that does nothing else.
        late_s: Part of `send_s` that came after the forward pass.
    """

    num_blocks: int
    num_bytes: int
    compute_s: float
    pack_s: float
    send_s: float
    late_s: float

    @property
    def hidden_share(self) -> float:
        """Share of the transfer's time, packing and sending, during which the next layers were computed."""
        total_s = self.pack_s + self.send_s
        return (self.send_s - self.late_s) / total_s if total_s else 0.0


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


@final
class TransferClock:
    """Notes the times of one transfer. The computing thread and the sending thread write different fields."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start_s = self._end_s = clock()
        self._num_blocks = self._num_bytes = 0
        self._pack_s = 0.0
        self._sent: list[tuple[float, float]] = []

    def packed(self, start_s: float, num_blocks: int, num_bytes: int) -> None:
        """A layer's pages were packed, from `start_s` until now."""
        self._pack_s += self._clock() - start_s
        self._num_blocks += num_blocks
        self._num_bytes += num_bytes

    def computed(self) -> None:
        """The forward pass is over."""
        self._end_s = self._clock()

    def sent(self, start_s: float, end_s: float) -> None:
        """A layer's pages were sent."""
        self._sent.append((start_s, end_s))

    def record(self) -> TransferRecord:
        """To be called when all pages are sent."""
        send_s = sum(end - start for start, end in self._sent)
        late_s = sum(max(0.0, end - max(start, self._end_s)) for start, end in self._sent)
        compute_s = self._end_s - self._start_s
        return TransferRecord(self._num_blocks, self._num_bytes, compute_s, self._pack_s, send_s, late_s)
