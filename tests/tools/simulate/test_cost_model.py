"""Costs against arithmetic done by hand."""

import dataclasses

import pytest

from twophase.core.errors import ConfigError
from twophase.core.plan import ScheduledChunk, StepPlan
from twophase_features.experts.config import ExpertsConfig
from twophase_tools.simulate.cost_model import Assumptions, LinearCostModel, RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE, Hardware, hardware_named
from twophase_tools.simulate.model_shapes import MODELS, ModelShape, model_shape
from twophase_tools.simulate.step_load import StepLoad, load_of

# Two layers, one head of size 4, hidden 8, intermediate 16, vocabulary 10.
TOY = ModelShape("toy", 8, 16, 2, 2, 1, 4, 10, True, "by hand")
TOY_GPU = Hardware("toy", 1000.0, 100.0, 1e5, 50.0, "by hand")
IDEAL = Assumptions(
    1, 1, all_reduce_latency_s=0.5, host_bytes_per_s=64, schedule_s=2, update_s=3, overhead_per_chunk_s=0.25
)


def test_load_of_a_plan():
    """The worked example of StepLoad."""
    decode = ScheduledChunk(0, [5], 9, [0], 1)
    prefill = ScheduledChunk(1, [1, 2, 3, 4], 2, [1], 1)
    load = load_of(StepPlan((decode, prefill), 1, 5))
    assert load == StepLoad(5, 2, 2, 10, 18, 6)


def test_linear_costs():
    model = LinearCostModel(1, 0.1, 0.01, 0.001, 0.0001)
    cost = model.cost(StepLoad(5, 2, 2, 10, 18, 6))
    assert cost.run_s == pytest.approx(1 + 0.5 + 0.02 + 0.01 + 0.0018)
    assert (cost.schedule_s, cost.update_s) == (0, 0)
    with pytest.raises(ConfigError, match=r"per_token_s must be .* got -1"):
        LinearCostModel(1, -1)
    with pytest.raises(ConfigError, match="must take time"):
        LinearCostModel(0, 0, 1)


def test_toy_shape_by_hand():
    # Per layer: q 8x8, k and v 8x4 each, o 8x8, and three of 8x16: 64 + 64 + 64 + 384.
    assert TOY.layer_params == 2 * (64 + 2 * 32 + 64 + 384)
    assert TOY.output_params == 80
    assert TOY.weight_bytes == 2 * (1152 + 80) == TOY.memory_bytes
    assert dataclasses.replace(TOY, tie_word_embeddings=False).memory_bytes == 2 * (1152 + 160)
    assert TOY.kv_bytes_per_token == 2 * 2 * 4 * 2  # k and v, layers, D, bytes


def test_roofline_by_hand():
    model = RooflineCostModel(TOY_GPU, TOY, 1, IDEAL, block_size=4)
    few = StepLoad(1, 1, 1, 6, 0, 0)
    # Memory bound: weights 2464 bytes, 6 keys read and 1 written at 32 bytes each, at 100 bytes/s.
    assert model.run_s(few) == pytest.approx((2464 + 7 * 32) / 100)
    many = StepLoad(100, 1, 1, 0, 5050, 100)
    # Compute bound: 2 * (1152 * 100 + 80) + 4 * 2 heads * 4 * 2 layers * 5050 pairs operations at 1000/s. Then 100 keys
    # are written.
    assert model.run_s(many) == pytest.approx((2 * (115200 + 80) + 64 * 5050) / 1000 + 32)
    # Nothing hides behind another kernel: products bound by arithmetic, beside decodes bound by 1,000 keys.
    mixed = many._replace(decode_context=1000)
    assert model.run_s(mixed) - model.run_s(many) == pytest.approx(320)
    assert model.cost(few).schedule_s == 2.25
    assert model.cost(few).update_s == 3.25
    # A block is 4 * 32 bytes; 64 bytes/s to the host.
    assert model.run_s(few._replace(num_moved_blocks=3)) - model.run_s(few) == pytest.approx(6)
    # Half the efficiency, twice the time.
    half = dataclasses.replace(IDEAL, bandwidth_efficiency=0.5)
    assert RooflineCostModel(TOY_GPU, TOY, 1, half).run_s(few) == pytest.approx(2 * model.run_s(few))


def test_experts_by_hand():
    """TOY, whose second layer has 4 experts of 3 rows, two for a token, in place of the MLP."""
    sparse = dataclasses.replace(TOY, experts=ExpertsConfig(4, 2, 3, True, (1,)))
    n = sparse.hidden_size
    attention = 2 * 2 * n * sparse.head_dim * (sparse.num_heads + sparse.num_kv_heads)
    fixed = attention + 3 * n * sparse.intermediate_size
    router, expert = 4 * n, 3 * n * 3
    assert sparse.layer_params == fixed + 4 * expert
    assert sparse.active_layer_params == fixed + router + 2 * expert
    # Two tokens miss an expert with a chance of a quarter; a thousand miss none.
    assert [sparse.read_layer_params(t) - fixed - router for t in (1, 2, 1000)] == [2 * expert, 3 * expert, 4 * expert]
    assert sparse.memory_bytes_on(2) == 2 * (sparse.layer_params // 2 + router + 10 * n)  # routers are whole, as rows
    model = RooflineCostModel(TOY_GPU, sparse, 1, IDEAL, block_size=4)
    one, two = (StepLoad(t, 0, 1, 0, 0, 0) for t in (1, 2))
    (flops, two_read), (_, one_read) = model.kernels(two)[0], model.kernels(one)[0]
    assert flops == 2 * 2 * sparse.active_layer_params
    assert two_read - one_read == sparse.value_bytes * expert
    assert TOY.read_layer_params(1) == TOY.layer_params == TOY.active_layer_params


def test_tensor_parallel_by_hand():
    shape = dataclasses.replace(TOY, num_kv_heads=2)
    alone, split = (RooflineCostModel(TOY_GPU, shape, n, IDEAL) for n in (1, 2))
    few = StepLoad(3, 3, 3, 6, 0, 0)
    # 2 all-reduces in each of 2 layers: 0.5 s, and 2 * 1/2 * 3 tokens * 8 * 2 bytes at 50 bytes/s.
    assert split.run_s(few) == pytest.approx(alone.run_s(few) / 2 + 4 * (0.5 + 48 / 50))
    with pytest.raises(ConfigError, match="2 key/value heads"):
        RooflineCostModel(TOY_GPU, shape, 3)
    with pytest.raises(ConfigError, match="weights"):
        RooflineCostModel(hardware_named("h100"), model_shape("llama-3-70b")).num_blocks()
    # 90 % of 8 * 80 GB in blocks of 16 tokens of 320 KiB, without 141.1 GB of weights and, on seven GPUs more, an
    # embedding of 128,256 rows of 8,192 numbers in two bytes each, which every rank holds.
    blocks = RooflineCostModel(hardware_named("h100"), model_shape("llama-3-70b"), 8).num_blocks()
    assert blocks == pytest.approx((576e9 - 141.1e9 - 7 * 128_256 * 8192 * 2) / (16 * 327_680), rel=1e-3)


def test_published_sizes_and_names():
    """Parameter counts as the models' names and cards say."""
    counts = {name: shape.memory_bytes / 2 for name, shape in MODELS.items()}
    assert counts["smollm2-135m"] == pytest.approx(134.5e6, rel=0.001)
    assert counts["llama-3-8b"] == pytest.approx(8.03e9, rel=0.001)
    assert counts["llama-3-70b"] == pytest.approx(70.55e9, rel=0.001)
    assert all(gpu.source and gpu.flops_per_s > 1e14 for gpu in HARDWARE.values())
    for call, name in ((hardware_named, "z80"), (model_shape, "nobody's")):
        with pytest.raises(ConfigError, match="known"):
            call(name)
