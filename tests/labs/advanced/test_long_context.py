"""What a long context takes."""

import pytest

from twophase_labs.advanced.long_context import context


def test_bytes_grow_with_the_length_and_attention_with_its_square():
    one, double = context(500_000), context(1_000_000)
    assert double.kv_bytes == 2 * one.kv_bytes == 2 * 500_000 * 131_072
    assert 3 < double.prefill_s / one.prefill_s < 4


@pytest.mark.parametrize("num_tokens", [8_192, 131_072])
def test_those_that_fit_fill_the_memory_beside_the_weights(num_tokens):
    one = context(num_tokens)
    room = 0.9 * 80e9 - 16.06e9
    assert one.num_fit * one.kv_bytes <= room < (one.num_fit + 1) * one.kv_bytes
