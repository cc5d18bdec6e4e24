"""Bytes of weights on this machine: the oracle is a loaded engine, whose tensors are counted."""

from functools import cache

import pytest
import torch

from tests.model.tiny import make_folder
from tests.quantization.writers import say
from twophase import LLM
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.model.config import load_config
from twophase.model.weights import load_weights
from twophase_features.quantization.schemes import SCHEMES
from twophase_tools.bench.quality_cost import weight_memory_bytes
from twophase_tools.capacity import weights_here as module
from twophase_tools.capacity.weights_here import weights_here

SIZES = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}  # for groups of 128
AMPLE, TIGHT = 2**40, 2**20  # the plain weights are 0.6 MiB, more than a quarter of the latter


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders by family, whose weights are bfloat16, as published ones are."""

    @cache
    def save(family):
        path = tmp_path_factory.mktemp(family)
        folder, model = make_folder(family, path, intermediate_size=256, max_position_embeddings=64, **SIZES)
        model.to(torch.bfloat16).save_pretrained(folder)
        return folder

    return save


def has(monkeypatch, num_bytes):
    """A machine with so much memory free, for the loader as for us."""
    for name in ("twophase_features.quantization.loader", module.__name__):
        monkeypatch.setattr(f"{name}.free_host_memory_bytes", lambda: num_bytes)


def held_by(folder, scheme, dtype):
    of = None if scheme is None else SCHEMES[scheme]
    return weight_memory_bytes(load_weights(folder, load_config(folder), dtype, torch.device("cpu"), scheme=of))


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_as_many_bytes_as_are_loaded(scheme, dtype, saved, monkeypatch):
    folder, config = saved("smollm2"), EngineConfig(device="cpu", quantization=scheme, dtype=dtype)
    has(monkeypatch, AMPLE)
    found = weights_here(folder, config)
    assert found.num_bytes == held_by(folder, scheme, found.dtype)
    assert found.plain_bytes == held_by(folder, None, found.dtype)
    has(monkeypatch, TIGHT)
    assert found.lean_bytes == held_by(folder, scheme, found.dtype) == weights_here(folder, config).num_bytes


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3-moe"])
@pytest.mark.parametrize("scheme", [None, "int4", "int8_dynamic"])
def test_other_families(family, scheme, saved):
    found = weights_here(saved(family), EngineConfig(device="cpu", quantization=scheme))
    assert found.num_bytes == held_by(saved(family), scheme, found.dtype)


def test_as_many_bytes_as_an_engine_holds(saved):
    """With its own choice of a dtype."""
    found = weights_here(saved("smollm2"), EngineConfig(device="cpu", quantization="int4"))
    options = {"num_kv_blocks": 2, "skip_tokenizer_init": True}
    with LLM(saved("smollm2"), device="cpu", quantization="int4", **options) as llm:
        assert llm.model.weights.dtype == found.dtype
        assert weight_memory_bytes(llm.model.weights) == found.num_bytes


def test_a_gpu_keeps_no_copies(saved, monkeypatch):
    """Not run on a GPU: `test_memory` has the layers of one."""
    folder = saved("smollm2")
    monkeypatch.setattr(module, "resolve_device", torch.device)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 * 2**20, 8 * 2**20))
    found = weights_here(folder, EngineConfig(device="cuda", quantization="int4"))
    assert found.num_bytes == found.lean_bytes < found.plain_bytes
    assert (found.free_bytes, found.fits) == (7 * 2**20, True)


def test_what_the_engine_refuses(tmp_path):
    folder, _ = make_folder("llama", tmp_path, intermediate_size=256, **SIZES)
    say(folder, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True})
    with pytest.raises(ConfigError, match="already quantised"):
        weights_here(folder, EngineConfig(quantization="int4"))


def test_in_words(saved):
    folder = saved("smollm2")
    plain = weights_here(folder, EngineConfig(device="cpu", dtype="bfloat16"))
    assert plain.to_text() == "bfloat16: 0.00 GiB of weights on cpu"
    text = weights_here(folder, EngineConfig(device="cpu", quantization="int8_dynamic", dtype="bfloat16")).to_text()
    assert text == "bfloat16, quantization=int8_dynamic: 0.00 GiB of weights on cpu, 0.00 GiB if plain"
