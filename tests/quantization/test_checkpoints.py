"""Folders that compressed-tensors, AWQ and GPTQ tools write: every one gives the logits of its own dequantised weights."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.model.paged import BLOCK_SIZE, Pages
from tests.model.test_families import assert_logits_equal, oracle_logits
from tests.model.tiny import load_model
from tests.quantization import writers
from tests.quantization.writers import awq, compressed_config, gptq, gptq_v2, packed, say, whole_bytes, write
from twophase import LLM
from twophase.core.errors import ConfigError, ModelFolderError
from twophase.model.config import load_config
from twophase_features.quantization.checkpoint_config import read_quantization_config

PROMPT = [5, 17, 99, 3, 64, 23, 88]
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
PER_CHANNEL = {"bits": 8, "group_size": None}
FORMATS = {
    "awq": (AWQ, awq, {}),
    "gptq": (GPTQ, gptq, {}),
    "gptq-symmetric": (GPTQ | {"sym": True}, gptq, {"symmetric": True}),
    "gptq-v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, gptq_v2, {}),
    "gptq-act-order": (GPTQ | {"desc_act": True}, gptq, {"shuffled": True}),
    "gptq-8-bits": (GPTQ | {"bits": 8, "group_size": -1}, gptq, PER_CHANNEL),
    "packed": (compressed_config("pack-quantized", 4, 32, True), packed, {"symmetric": True}),
    "packed-asymmetric": (compressed_config("pack-quantized", 4, 32, False), packed, {}),
    "packed-act-order": (
        compressed_config("pack-quantized", 4, 32, False, actorder="group"),
        packed,
        {"shuffled": True},
    ),
    "packed-8-bits": (compressed_config("pack-quantized", 8, None, False), packed, PER_CHANNEL),
    "int8": (compressed_config("int-quantized", 8, None, True), whole_bytes, PER_CHANNEL | {"symmetric": True}),
    "int8-asymmetric": (compressed_config("int-quantized", 8, None, False), whole_bytes, PER_CHANNEL),
}


def logits_of(folder):
    return Pages(load_model(folder), 1).run([(0, PROMPT)])[0]


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_dequantised_weights(name, tmp_path):
    config, store, how = FORMATS[name]
    oracle = write(tmp_path, config, store, **how)
    assert_logits_equal(logits_of(tmp_path), oracle_logits(oracle, PROMPT), name)


def test_e4m3_weights(tmp_path):
    """float-quantized: the codes are numbers themselves."""
    config = compressed_config("float-quantized", 8, None, True, type="float")
    codes_of = {}

    def store(stem, layer):
        scales = np.abs(layer.weight).max(axis=1, keepdims=True).astype(np.float16)
        codes_of[stem] = torch.from_numpy(layer.weight / scales).to(torch.float8_e4m3fn), scales
        return {f"{stem}.weight_scale": scales}

    oracle = write(tmp_path, config, store, **PER_CHANNEL, symmetric=True)
    tensors = load_file(tmp_path / "model.safetensors")
    for stem, (codes, scales) in codes_of.items():
        tensors[f"{stem}.weight"] = codes
        oracle.state_dict()[f"{stem}.weight"].copy_(codes.float() * torch.from_numpy(scales).float())
    save_file(tensors, tmp_path / "model.safetensors")
    assert_logits_equal(logits_of(tmp_path), oracle_logits(oracle, PROMPT), "e4m3")


@pytest.mark.parametrize(
    ("family", "plain"), [("llama-biases", ("v_proj", "down")), ("qwen3-moe", ()), ("qwen3-moe", (".experts.0.",))]
)
def test_layers_that_are_left_plain_stay_so(family, plain, tmp_path):
    """Of q, k and v one is plain: they cannot be one product. Or one expert is, or none."""

    def some(stem, layer):
        return {f"{stem}.weight": layer.weight} if any(part in stem for part in plain) else awq(stem, layer)

    oracle = write(tmp_path, AWQ, some, family=family)
    assert_logits_equal(logits_of(tmp_path), oracle_logits(oracle, PROMPT), family)


def test_a_quantised_folder_opens_by_itself_in_bfloat16(tmp_path):
    write(tmp_path, AWQ, awq)
    llm = LLM(str(tmp_path), skip_tokenizer_init=True, num_kv_blocks=20, block_size=BLOCK_SIZE)
    plain = LLM(str(tmp_path), skip_tokenizer_init=True, num_kv_blocks=20, block_size=BLOCK_SIZE, dtype="float32")
    ours, exact = (Pages(each.model, 1).run([(0, PROMPT)])[0] for each in (llm, plain))
    if llm.model.weights.dtype == torch.bfloat16:  # a CPU that multiplies it
        assert float((ours - exact).abs().max()) < 0.05 * float(exact.abs().max())
    with pytest.raises(ConfigError, match=r"quantization='int8' rounds plain weights, but the weights in .* already"):
        LLM(str(tmp_path), quantization="int8")


REFUSED = {
    "no object": ("int4", "must be an object"),
    "another method": (
        {"quant_method": "bitsandbytes"},
        "quant_method 'bitsandbytes' .* supported: 'compressed-tensors', 'awq'",
    ),
    "AWQ of 3 bits": (AWQ | {"bits": 3}, "bits 3 of AWQ is not supported; supported: 4"),
    "AWQ for gemv": (AWQ | {"version": "gemv"}, "version 'gemv' of AWQ"),
    "AWQ without zeros": (AWQ | {"zero_point": False}, "zero_point False"),
    "AWQ in groups of half": (AWQ | {"group_size": 0.5}, "group_size must be"),
    "GPTQ for marlin": (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
    "GPTQ per layer": (GPTQ | {"dynamic": {"x": {}}}, "'dynamic'"),
    "sparse": (compressed_config("marlin-24", 4, 32, True), "format 'marlin-24'"),
    "4 bits in bytes": (compressed_config("int-quantized", 4, 32, True), "num_bits 4 of int-quantized .* supported: 8"),
    "floats as integers": (compressed_config("int-quantized", 8, None, True, type="float"), "contradict the format"),
    "a type of its own": (compressed_config("int-quantized", 8, None, True, type="nf4"), "type 'nf4' of weights"),
    "a scale per tensor": (compressed_config("int-quantized", 8, None, True, strategy="tensor"), "strategy 'tensor'"),
    "K/V": (compressed_config("pack-quantized", 4, 32, True) | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_dtype"),
    "no groups": (compressed_config("pack-quantized", 4, 32, True) | {"config_groups": {}}, "one entry of config_gr"),
    "a transform": (compressed_config("pack-quantized", 4, 32, True) | {"transform_config": {"a": 1}}, "transform_con"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(name, tmp_path):
    config, said = REFUSED[name]
    writers.make_folder("llama", tmp_path)
    say(tmp_path, config)
    with pytest.raises(ModelFolderError, match=said) as caught:
        load_config(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize("key", ["input_activations", "output_activations", "targets"])
def test_other_parts_of_a_group_are_refused(key):
    config = compressed_config("int-quantized", 8, None, True)
    config["config_groups"]["group_0"][key] = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False}
    with pytest.raises(ValueError, match=key if key != "targets" else "targets"):
        read_quantization_config(config)


def test_activations_in_8_bits_are_read():
    config = compressed_config("int-quantized", 8, None, True)
    tokens = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
    config["config_groups"]["group_0"]["input_activations"] = tokens
    assert read_quantization_config(config).scheme.activations == "int8"


def test_missing_and_misshapen_parts_are_named(tmp_path):
    write(tmp_path, AWQ, awq)
    path, name = tmp_path / "model.safetensors", "model.layers.1.mlp.down_proj.qzeros"
    tensors = load_file(path)
    zeros = tensors.pop(name)
    save_file(tensors, path)
    with pytest.raises(ModelFolderError, match=rf"lacks {name}"):
        logits_of(tmp_path)
    save_file(tensors | {name: zeros[:-1].contiguous()}, path)
    with pytest.raises(ModelFolderError, match=rf"{name} has shape \[2, 8\], but config.json calls for \[3, 8\]"):
        logits_of(tmp_path)
    save_file(tensors | {name: zeros.float()}, path)
    with pytest.raises(ModelFolderError, match=rf"{name} is stored as F32; supported here: I32"):
        logits_of(tmp_path)


def test_groups_of_unequal_size_are_refused(tmp_path):
    def store(stem, layer):
        layer.group_of[0] += "layers.0.mlp.down" in stem
        return gptq(stem, layer)

    write(tmp_path, GPTQ, store)
    name = "model.layers.0.mlp.down_proj.g_idx"
    with pytest.raises(ModelFolderError, match=rf"{name} must have 32 inputs of each of 3 groups"):
        logits_of(tmp_path)
