"""A learner's window in the engine."""

import pytest

from twophase_features.windows.sliding_window import SlidingWindow
from twophase_labs.advanced.window_engine import OwnWindow


def kept_blocks(num_tokens, block_size, window, num_sinks):
    """By definition: the blocks with a position that the next query sees."""
    seen = {p // block_size for p in range(num_tokens + 1) if p < num_sinks or p > num_tokens - window}
    return sorted(seen & set(range(-(-num_tokens // block_size))))


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("num_sinks", [0, 3, 17])
def test_own_window_frees_as_the_engines_does(block_size, num_sinks):
    for window in (1, 5, 33):
        own, engines = OwnWindow(window, num_sinks, kept_blocks), SlidingWindow(window, num_sinks)
        for num_tokens in range(120):
            freed = own.freed_blocks(num_tokens, block_size)
            assert list(freed) == list(engines.freed_blocks(num_tokens, block_size))
            assert freed.stop == engines.freed_blocks(num_tokens, block_size).stop
