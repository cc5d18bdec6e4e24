"""Bytes against arithmetic by hand, and against the engine's own cache."""

import dataclasses
from contextlib import nullcontext

import pytest
import torch

from tests.engine.feature_runs import ranks_in_threads
from tests.model.tiny import make_folder
from tests.tools.capacity.plans import plan
from twophase import LLM
from twophase.cache.kv_cache import KVCacheSpec
from twophase.model.config import load_config
from twophase.model.weights import load_weights
from twophase_features.parallel.sharding import Shard
from twophase_features.quantization.kernel_linear import KernelLinear, kernel_for
from twophase_features.quantization.linear import PackedLinear
from twophase_features.quantization.schemes import SCHEMES
from twophase_features.step_memory import step_bytes
from twophase_tools.capacity import memory
from twophase_tools.capacity.config import DTYPE_BYTES
from twophase_tools.capacity.memory import blocks_of, even_shape, workspace_bytes
from twophase_tools.simulate.model_shapes import MODELS, ModelShape, model_shape

TOY = ModelShape("toy", 8, 16, 2, 1, 1, 4, 10, True, "by hand")
SHORT = "{rate: 1, prompt_tokens: 8, output_tokens: 8}"


@pytest.mark.parametrize(
    ("model", "num_bytes"), [("llama-3-8b", 131_072), ("llama-3-70b", 327_680), ("smollm2-135m", 23_040)]
)
def test_kv_bytes_of_a_token(model, num_bytes):
    table = plan(model=model).memory
    assert table.kv_bytes_per_token == num_bytes
    assert table.block_bytes == 16 * num_bytes


def test_119_requests_and_not_128():
    """16 GB of weights in 80 GB leave 64 GB: 119 requests of 512 MiB. In GiB it would have been 128."""
    worked = plan(gpu_memory_utilization=1, workspace="0 GB")
    assert worked.memory.total_bytes == 80 * 10**9
    assert worked.memory.weight_bytes == pytest.approx(16e9, rel=0.005)
    assert worked.at_limit.num_bytes == 512 * 2**20
    assert worked.at_limit.num_requests == 119
    # Whoever takes GB for GiB buys 128.
    assert 64 * 2**30 // worked.at_limit.num_bytes == 128


def test_the_table_adds_up():
    table = plan().memory
    assert table.headroom_bytes == 8 * 10**9
    parts = (table.headroom_bytes, table.weight_bytes, table.workspace_bytes, table.pool_bytes)
    assert sum(parts) == table.total_bytes
    assert table.num_blocks * table.block_bytes <= table.pool_bytes < (table.num_blocks + 1) * table.block_bytes


def test_weights_of_fewer_bits():
    """Llama-3-8B: codes, scales and minima of the layers, the head in 8 bits, the embedding and the norms as they are.
    Scales and minima in float32, as a GPU has them."""
    shape, planned = MODELS["llama-3-8b"], plan(quantization="int4")
    in_layers = shape.layer_params // 2 + shape.layer_params // 32 * 8
    head, embed, norms = 128256 * (4096 + 4), 2 * 128256 * 4096, 2 * 65 * 4096
    assert planned.memory.weight_bytes == in_layers + head + embed + norms
    assert planned.config.shape.weight_bytes == in_layers + head
    assert 0.4 < planned.memory.weight_bytes / plan().memory.weight_bytes < 0.45


@pytest.mark.parametrize("kv", ["auto", "float32", "float16", "bfloat16", "int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", list(MODELS))
def test_the_cache_has_as_many_bytes(model, dtype, kv):
    """The oracle is the engine's cache, scales and all."""
    shape = MODELS[model]
    quantised = kv if kv in ("int8", "fp8_e4m3") else "none"
    stored = getattr(torch, dtype if kv == "auto" or quantised != "none" else kv)
    spec = KVCacheSpec(shape.num_layers, shape.num_kv_heads, shape.head_dim, 32, stored, quantised)
    table = plan(model=model, dtype=dtype, kv_cache_dtype=kv, block_size=32).memory
    assert (table.kv_bytes_per_token, table.block_bytes) == (spec.bytes_per_token, spec.bytes_per_block)


def test_weights_follow_the_dtype():
    assert plan(dtype="float32").memory.weight_bytes == 2 * plan(dtype="float16").memory.weight_bytes
    assert plan(kv_cache_dtype="int8").memory.weight_bytes == plan().memory.weight_bytes


def test_gpus_share():
    alone, shared = plan(model="llama-3-70b", hardware="h200"), plan(model="llama-3-70b", tensor_parallel_size=8)
    # The embedding, 128,256 rows of 8,192, and the norms, 161 of 8,192, are whole on each.
    whole = 2 * 8192 * (128_256 + 2 * 80 + 1)
    assert (shared.memory.weight_bytes - whole) * 8 == alone.memory.weight_bytes - whole
    assert shared.memory.kv_bytes_per_token == 327_680 // 8
    # Of all GPUs together: 4,096 tokens of 320 KiB.
    assert shared.at_limit.num_bytes == alone.at_limit.num_bytes == 4096 * 327_680


def test_an_uneven_split_costs_as_the_next_even_one():
    """SmolLM2's 3 K/V heads on 2 GPUs: 2 of them on one GPU, with the 6 query heads that read them."""
    even = even_shape(MODELS["smollm2-135m"], 2)
    assert (even.num_heads, even.num_kv_heads, even.intermediate_size, even.vocab_size) == (12, 4, 1536, 49152)
    assert plan(model="smollm2-135m", tensor_parallel_size=2).memory.kv_bytes_per_token == 23_040 * 2 // 3
    # More GPUs than heads: each has a copy of one.
    assert plan(model="smollm2-135m", tensor_parallel_size=8).memory.kv_bytes_per_token == 23_040 // 3
    assert even_shape(MODELS["llama-3-8b"], 4) == MODELS["llama-3-8b"]


def test_workspace_by_hand():
    """The worked example; and two GPUs that share what the layers compute, and not the residual stream or the logits."""
    assert workspace_bytes(TOY, 1, 5, 100) == 880 + 16_000
    assert workspace_bytes(TOY, 1, 5, 200) == 880 + 32_000
    two_heads = dataclasses.replace(TOY, num_heads=2, num_kv_heads=2)
    assert workspace_bytes(two_heads, 1, 5, 100) == 5 * (24 + 32 + 48) * 2 + 16_000
    assert workspace_bytes(two_heads, 2, 5, 100) == 5 * (24 + 16 + 24) * 2 + 16_000


def test_workspace_follows_the_step():
    # Llama-3-8B: 3 * 4,096 of the residual stream, 8,192 + 2,048 of attention and 3 * 14,336 values a token.
    logits = 4 * 4 * 128_256 * plan().config.max_num_seqs
    assert plan().memory.workspace_bytes == 8192 * (3 * 4096 + 10_240 + 3 * 14336) * 2 + logits
    assert plan(chunk_size=512).memory.workspace_bytes < plan().memory.workspace_bytes
    assert plan(workspace="1.5 GiB").memory.workspace_bytes == 3 * 2**29


def test_blocks_by_hand():
    assert [blocks_of(n, 16) for n in (1, 16, 17)] == [1, 1, 2]


def tensors_in(part):
    if isinstance(part, torch.Tensor):
        return [part]
    if isinstance(part, tuple):
        return [tensor for each in part for tensor in tensors_in(each)]
    if dataclasses.is_dataclass(part):
        return tensors_in(tuple(getattr(part, field.name) for field in dataclasses.fields(part)))
    return []


def bytes_held(part) -> int:
    """Each tensor's memory counted once."""
    storages = [each.untyped_storage() for each in tensors_in(part)]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize(
    ("family", "dtype"),
    [("smollm2", "bfloat16"), ("llama", "float32"), ("mixtral", "float32"), ("qwen3-moe", "float32")],
)
def test_an_engine_holds_as_many_bytes_of_weights(family, num_ranks, dtype, tmp_path, monkeypatch):
    """The oracle is a loaded model, as on a GPU. Rank 0 is the fullest: of 80 rows, five units, it holds three."""
    folder, _ = make_folder(family, tmp_path, intermediate_size=80, vocab_size=131)
    config = load_config(folder)
    monkeypatch.setattr("twophase.model.linear.can_pack", lambda dtype: False)
    shard = Shard(config, 0, num_ranks)
    weights = load_weights(folder, config, getattr(torch, dtype), torch.device("cpu"), shard.cut, shard.experts)
    shape = dataclasses.replace(model_shape(str(folder)), value_bytes=DTYPE_BYTES[dtype])
    assert memory.weight_bytes(shape, num_ranks) == bytes_held(weights)


def as_on_a_gpu(weight, bias, dtype, keeps_plain=True):
    """What `make_quantized_linear` makes where Triton compiles."""
    return (PackedLinear if kernel_for(weight) is None else KernelLinear).from_weight(weight, bias)


@pytest.mark.parametrize("family", ["smollm2", "llama"], ids=["tied", "untied"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_engine_on_a_gpu_holds_as_many_bytes_of_quantised_weights(family, scheme, tmp_path, monkeypatch):
    """The oracle is a loaded model whose layers are those of a GPU."""
    sizes = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
    sizes |= {"intermediate_size": 256, "vocab_size": 131, "max_position_embeddings": 64}
    folder, _ = make_folder(family, tmp_path, **sizes)
    monkeypatch.setattr("twophase_features.quantization.loader.make_quantized_linear", as_on_a_gpu)
    weights = load_weights(folder, load_config(folder), torch.bfloat16, torch.device("cpu"), scheme=SCHEMES[scheme])
    table = plan(model=folder, quantization=scheme, max_model_len=64, workload=SHORT).memory
    # Of scales per output, a layer of 256 inputs is counted as two of 128.
    is_exact = SCHEMES[scheme].group_size is not None
    assert table.weight_bytes == pytest.approx(bytes_held(weights), rel=0 if is_exact else 0.01)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize(
    ("family", "kv"), [("smollm2", "int8"), ("llama", "auto"), ("llama", "int8"), ("qwen3-moe-some-dense", "auto")]
)
def test_a_plan_has_the_bytes_of_a_loaded_engine(family, num_ranks, kv, tmp_path, monkeypatch):
    """Weights, K/V and what a step is given: rank 0 of a real engine, which is the fullest, against the plan."""
    monkeypatch.setattr("twophase.model.linear.can_pack", lambda dtype: False)
    sizes = {"head_dim": 16, "num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 64}
    if family.startswith("qwen3-moe"):
        sizes |= {"attention_bias": False}  # biases are not counted
    folder, _ = make_folder(family, tmp_path, intermediate_size=80, vocab_size=131, **sizes)
    options = {"kv_cache_dtype": kv, "max_num_seqs": 8, "max_num_batched_tokens": 32, "tensor_parallel_size": num_ranks}
    table = plan(model=folder, dtype="float32", max_model_len=64, workload=SHORT, **options).memory
    ranks = ranks_in_threads() if num_ranks > 1 else nullcontext()
    with ranks, LLM(folder, device="cpu", num_kv_blocks=5, skip_tokenizer_init=True, **options) as llm:
        assert table.weight_bytes == bytes_held(llm.model.weights)
        assert table.block_bytes * 5 == sum(each.nbytes for each in llm.kv_cache.storage)
        assert table.workspace_bytes == step_bytes(llm.model.config, llm.scheduler.config, torch.float32)
