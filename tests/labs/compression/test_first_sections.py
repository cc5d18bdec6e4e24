"""What sections 1 to 3 and 7 of lab 6 are made of: counted bits and bytes, another way to round, the file, packed words."""

import pytest
import torch

from twophase_labs.compression import gguf_walk, int4_launch, nearest, step_bytes
from twophase_labs.decode.decode_work import SMOLLM2


def test_bits_per_weight_of_groups_and_of_channels():
    assert nearest.bits_per_weight(4, 64) == 4.5
    assert nearest.bits_per_weight(4, 64, num_kept=1) == 4.25
    # Rows of 576 inputs but for down_proj's of 1536.
    assert 4 + 32 / 1536 < nearest.bits_per_weight(4, "channel") < 4 + 32 / 576
    assert nearest.bits_per_weight(4, "tensor") == pytest.approx(4, abs=1e-3)


def test_symmetric_keeps_zero_and_stays_within_half_a_step():
    weight = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)) + 0.3
    weight[0, :8] = 0
    weight[1, 3] = 0
    got = nearest.symmetric(weight, 4, 8)
    groups, rounded = weight.unflatten(1, (-1, 8)), got.unflatten(1, (-1, 8))
    assert torch.equal(got[weight == 0], torch.zeros(9))
    assert bool(((rounded - groups).abs() <= groups.abs().amax(-1, keepdim=True) / 14 + 1e-6).all())


def test_bytes_of_a_step_are_those_of_the_engine_s_formats():
    layers, head = step_bytes.weight_bytes(SMOLLM2, 5, 16)
    assert (layers, head) == (106_168_320 * 5 / 8, 49_152 * 576 * 2)
    assert step_bytes.kv_bytes(SMOLLM2, 16, context=10, num_sequences=3) == 30 * 2 * 30 * 3 * 64 * 2


def test_the_file_has_a_block_for_every_32_weights_of_the_linear_layers():
    stored = {name: (blocks.shape, weight.shape) for name, blocks, weight in gguf_walk.stored_linears()}
    assert len(stored) == 210
    assert all(blocks == (weight.numel() // 32, 20) for blocks, weight in stored.values())


def test_a_word_holds_eight_neighbours_the_first_lowest():
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [15] * 8])
    assert int4_launch.pack_words(codes).tolist() == [[0x87654321 - 2**32], [-1]]
