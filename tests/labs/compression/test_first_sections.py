"""What sections 1 to 3 of lab 6 are made of: examples, counted bits and bytes, two more ways to round, the file."""

import doctest

import pytest
import torch

from twophase_labs.compression import gguf_walk, nearest, step_bytes
from twophase_labs.decode.decode_work import SMOLLM2
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference


def test_the_examples_of_quantize_hold():
    solved = run_reference(Workbook.find().lab("06"))
    examples = doctest.DocTestParser().get_doctest(solved["quantize"].__doc__, dict(solved), "quantize", None, None)
    told = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=told.append)
    assert result.attempted >= 2
    assert result.failed == 0, "".join(told)


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


def test_a_ratio_in_words():
    assert [nearest.in_words(ratio) for ratio in (0.99966, 2.2582, 4321.0, 1.7205e6)] == [
        "x1.00", "x2.26", "x4,321", "x1.7 million",
    ]  # fmt: skip


def test_pictures_are_drawn():
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    figures = (
        nearest.draw_grids(weight, output=1, group_size=16),
        nearest.draw_quality([("a", 4.0, 2000.0), ("b", 4.5, 1.5), ("c", 5.0, 1.0)]),
        step_bytes.draw_shares(SMOLLM2, context=100, batches=(1, 4)),
        gguf_walk.draw_block(torch.arange(20, dtype=torch.uint8)),
    )
    assert all(figure.axes[0].get_title(loc="left") for figure in figures)
