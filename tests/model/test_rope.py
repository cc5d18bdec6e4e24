"""RoPE tables against their definition, and the scalings' limits."""

import math

import pytest
import torch

from twophase.model.config import RopeConfig
from twophase.model.llama import inverse_frequencies
from twophase_features.rope_scaling import LinearScaling, Llama3Scaling

LLAMA3 = RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))


def test_frequencies_are_a_geometric_series():
    expected = [10_000.0 ** (-2 * i / 8) for i in range(4)]
    assert inverse_frequencies(RopeConfig(1e4), 8).tolist() == pytest.approx(expected, rel=1e-6)


def test_linear_scaling_divides_every_frequency():
    plain, scaled = (
        inverse_frequencies(RopeConfig(1e4), 64),
        inverse_frequencies(RopeConfig(1e4, LinearScaling(4.0)), 64),
    )
    assert torch.equal(plain / 4, scaled)


def test_llama3_keeps_fast_pairs_divides_slow_ones_and_blends_between():
    plain, scaled = inverse_frequencies(RopeConfig(5e5), 128), inverse_frequencies(LLAMA3, 128)
    wavelengths = 2 * math.pi / plain
    fast, slow = wavelengths < 8192 / 4, wavelengths > 8192 / 1
    assert fast.any()
    assert slow.any()
    assert torch.equal(scaled[fast], plain[fast])
    assert torch.allclose(scaled[slow], plain[slow] / 8, rtol=1e-6)
    between = ~(fast | slow)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()
    assert (scaled.diff() < 0).all()
