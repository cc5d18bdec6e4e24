"""The messages between the two sides of a disaggregated engine: plain data, pickled between processes of one program.

decode side (rank 0)                         prefill side
Submit ->                                    a prompt to compute, and the blocks to send
                        <- Pages             layer by layer, as they are computed, and chunk by chunk
                        <- Done              all its pages have gone before
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from twophase.core.plan import BlockKey


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


@dataclass(slots=True)
class Transfer:
    """The pages that one forward pass sends. The computing thread and the sending thread write different fields.

    Attributes:
        start_s, end_s: When the forward pass began and ended, packing included.
        num_blocks, num_bytes: In all layers together.
        pack_s: Copying pages into buffers, which the computing thread does itself: never hidden.
        sent: From when until when pages were being sent, by the thread that does nothing else.
    """

    start_s: float
    end_s: float = 0.0
    num_blocks: int = 0
    num_bytes: int = 0
    pack_s: float = 0.0
    sent: list[tuple[float, float]] = field(default_factory=list)

    @property
    def send_s(self) -> float:
        return sum(end - start for start, end in self.sent)

    @property
    def late_s(self) -> float:
        """Part of `send_s` that came after the forward pass."""
        return sum(max(0.0, end - max(start, self.end_s)) for start, end in self.sent)


@dataclass(frozen=True, slots=True)
class Done:
    """A prompt is computed and all its pages have been sent.

    Attributes:
        error: Why the prompt could not be computed, so that pages are missing.
        prefill_s: From its first chunk to its end.
        num_cached_tokens: Prompt tokens found in the prefix cache of the prefill side.
        transfers: Those since the last prompt that was done.
    """

    request_id: str
    error: str | None = None
    prefill_s: float = 0.0
    num_cached_tokens: int = 0
    transfers: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """The pages of this request are not wanted any more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The last message of either side."""


Message = Submit | Pages | Done | Cancel | Bye
