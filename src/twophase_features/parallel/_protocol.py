"""What the two sides of a disaggregated engine say to each other. Plain data; it travels pickled between equals.

decode side (rank 0)                         prefill side
                        <- Hello             when it is ready
Submit ->                                    a prompt to compute
Grant ->                                     its blocks are reserved here, if Submit did not say so already
                        <- Pages, layers     as they are computed; several times for a prompt in chunks
                        <- Done              its first tokens; all its pages have gone before
Received ->                                  the blocks there can be freed
"""

from dataclasses import dataclass

from twophase.cache.kv_cache import KVCacheSpec
from twophase.core.outputs import TokenLogprobs
from twophase.core.plan import SampledToken
from twophase.core.sampling_params import SamplingParams
from twophase.model.config import ModelConfig
from twophase.scheduling.config import SchedulerConfig
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
    """Compute this prompt and the first token of each completion.

    Attributes:
        params: With the seed of its draws.
        first_block: As in `Grant`, if its blocks could be reserved at once; else None, and a `Grant` follows.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    cache_salt: str
    first_block: int | None


@dataclass(frozen=True, slots=True)
class Grant:
    """Blocks for the prompt are reserved on the decode side; the first `first_block` of them are filled already."""

    request_id: str
    first_block: int


@dataclass(frozen=True, slots=True)
class PageRange:
    """Blocks [first_block, first_block + num_blocks) of a prompt."""

    request_id: str
    first_block: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Pages:
    """These blocks follow, a buffer per layer, first layer first (see `twophase_features.parallel.pages`)."""

    ranges: tuple[PageRange, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """A prompt is computed and all its pages have been sent.

    Attributes:
        tokens: The first token of each completion.
        queue_s, prefill_s: From its submission to its first chunk, and from there to its first token.
        num_cached_tokens: Prompt tokens found in the prefix cache of the prefill side.
        prompt_logprobs: If they were asked for.
    """

    request_id: str
    tokens: tuple[SampledToken, ...]
    queue_s: float
    prefill_s: float
    num_cached_tokens: int
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The prompt could not be computed."""

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Received:
    """All pages are there: the prefill side may free its own."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """This request is not wanted any more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class AskTransfers:
    """How did the transfers since the last question go?"""


@dataclass(frozen=True, slots=True)
class Transfers:
    """The answer."""

    records: tuple[TransferRecord, ...]


@dataclass(frozen=True, slots=True)
class Bye:
    """The last message of either side."""


Message = Hello | Submit | Grant | Pages | Done | Failed | Received | Cancel | AskTransfers | Transfers | Bye
