"""A learner's window in the engine."""

import pytest
import torch

from twophase.attention.interface import AttentionSpec
from twophase.attention.torch_backend import TorchBackend
from twophase_features.windows.sliding_window import SlidingWindow
from twophase_labs.advanced.window_engine import OwnMask, OwnWindow

SPEC = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=8, scale=1.0, window=5, num_sinks=2)


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


def test_own_mask_is_asked_with_window_and_sinks():
    asked = []

    def visible(queries, keys, window, num_sinks):
        asked.append((window, num_sinks))
        return (keys <= queries) & ((keys > queries - window) | (keys < num_sinks))

    queries, keys = torch.arange(20)[:, None], torch.arange(20)
    past = keys <= queries
    got = past & OwnMask(visible, SPEC)._in_window(queries, keys)
    assert torch.equal(got, past & TorchBackend(SPEC, 16)._in_window(queries, keys))
    assert asked == [(5, 2)]
