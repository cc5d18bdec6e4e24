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
from twophase_features.quantization.kernel_linear import KernelLinear, kernel_for
from twophase_features.quantization.linear import PackedLinear
from twophase_features.quantization.schemes import SCHEMES
from twophase_features.step_memory import step_bytes
from twophase_tools.simulate.model_shapes import MODELS

SHORT = "{rate: 1, prompt_tokens: 8, output_tokens: 8}"


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
