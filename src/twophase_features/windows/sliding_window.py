"""Which blocks of a sequence a later query can still see, when queries see a window of keys and a few sinks."""

from dataclasses import dataclass

from twophase.core.errors import ConfigError

FREED = -1  # stands in a block table where a block was given back: no query reads that column any more


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A query at position i sees keys at positions (i - window, i] and, as attention sinks, [0, num_sinks).

    Sinks after StreamingLLM (arXiv:2309.17453): a model that was not trained with a window puts much of its attention
    on the first few tokens, and falls apart when they go. Unlike there, positions stay as in the text: a key is rotated
    once, by the place where its token stands. StreamingLLM (section 3.2) rotates keys by their place in the cache, anew
    at every step, and so goes on without a limit; here a text ends at `max_model_len`. Raises ConfigError if `window`
    is below 1, or `num_sinks` below 0.
    """

    window: int
    num_sinks: int = 0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"A sliding window must hold at least 1 key, the token itself, got {self.window}.")
        if self.num_sinks < 0:
            raise ConfigError(f"There cannot be fewer than 0 attention sinks, got {self.num_sinks}.")

    def freed_blocks(self, num_tokens: int, block_size: int) -> range:
        """Blocks of a sequence, counted from 0, that no query at position `num_tokens` or later sees.

        Worked example, window 6, 2 sinks, block size 4, 13 tokens: the next query, at 13, sees [8, 13] and [0, 2).
        Blocks 0 (sinks), 2 and 3 are kept, and freed is range(1, 2).
        """
        num_sink_blocks = -(-self.num_sinks // block_size)
        return range(num_sink_blocks, max(num_sink_blocks, (num_tokens + 1 - self.window) // block_size))

    def max_blocks(self, block_size: int) -> int:
        """The most blocks of a sequence while it computes a token, or a chunk that does not cross a block's end.

        They hold the sinks and the window, whose first key may be the last one of its block.
        """
        return -(-self.num_sinks // block_size) + -(-(self.window - 1) // block_size) + 1
