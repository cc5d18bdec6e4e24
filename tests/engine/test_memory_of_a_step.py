"""What is left for the pool once a step has its memory, and for swapped blocks on the host: arithmetic, done by hand."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase import memory
from twophase.assembly import limits_of
from twophase.cache.kv_cache import KVCacheSpec
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.model.config import load_config
from twophase.scheduling.limits import SchedulerConfig
from twophase_features import step_memory
from twophase_features.offloading import host_memory

SPEC = KVCacheSpec(num_layers=32, num_kv_heads=8, head_dim=128, block_size=16, dtype=torch.bfloat16)
LIMITS = SchedulerConfig(256, 8192, 8192)
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
# Residual stream, q, k and v, the attention's output, gate and up and their product; logits of 256 rows, four times.
EXPECTED_BYTES = 8192 * 2 * (3 * 4096 + 4096 + 2 * 1024 + 4096 + 3 * 14336) + 256 * 4 * 4 * 128_256


@pytest.fixture(scope="module")
def config(tiny_folder):
    return replace(load_config(tiny_folder), **LLAMA_8B, vocab_size=128_256)


def check_step(module, config):
    assert module.step_bytes(config, LIMITS, torch.bfloat16) == EXPECTED_BYTES


def check_what_is_left(module):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "free_memory_bytes", lambda device: 20 * 2**30)
        found = module.num_blocks_that_fit(SPEC.bytes_per_block, torch.device("cuda"), None, EXPECTED_BYTES)
    assert found == int(0.9 * (20 * 2**30 - EXPECTED_BYTES)) // SPEC.bytes_per_block


def check_swap(module):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "free_memory_bytes", lambda device: 100 * SPEC.bytes_per_block)
        assert [module.default_num_blocks(SPEC.bytes_per_block, count) for count in (20, 25, 400)] == [20, 25, 25]


def test_a_step_keeps_its_memory(config):
    check_step(step_memory, config)
    check_what_is_left(memory)


def test_swapped_blocks_leave_the_host_half_of_its_memory():
    check_swap(host_memory)


def test_a_step_that_needs_all_memory_is_refused():
    with pytest.raises(ConfigError, match=r"kept for a step.*max_num_batched_tokens"):
        memory.num_blocks_that_fit(SPEC.bytes_per_block, torch.device("cpu"), 0.9, reserved_bytes=2**60)


def test_a_context_whose_rotary_tables_fit_into_no_memory_is_refused(config, monkeypatch):
    """Found by the fuzzer: a folder that says 10^9 positions took all of the machine's memory."""
    long = replace(config, max_position_embeddings=1_000_000)
    assert limits_of(EngineConfig(), long, torch.device("cpu")).max_model_len == 1_000_000
    monkeypatch.setattr(memory, "free_host_memory_bytes", lambda: 768_000_000)
    memory.check_rope_tables(long, 1_000_000)
    monkeypatch.setattr(memory, "free_host_memory_bytes", lambda: 767_999_999)
    with pytest.raises(ConfigError, match=r"RoPE tables for 1,000,000 positions.*a smaller max_model_len"):
        memory.check_rope_tables(long, 1_000_000)


def check_sizes(module):
    """The worked example of `activation_bytes`."""
    sizes_of = {"hidden_size": 8, "intermediate_size": 16, "num_heads": 1, "num_kv_heads": 1, "head_dim": 4}
    shape = SimpleNamespace(**sizes_of, vocab_size=10, experts=None)
    assert module.activation_bytes(shape, 5, 100, 2) == 880 + 16_000
    assert module.activation_bytes(shape, 5, 2, 2) == 880 + 64 * 160, "prompts may be scored"
    # Two of four experts of 6: per token 2 (18 + 40) values of 2 bytes, and 2 * 8 + 2 * 4 of 4 bytes.
    shape.experts = SimpleNamespace(num_experts=4, num_experts_per_tok=2, intermediate_size=6)
    assert module.activation_bytes(shape, 5, 100, 2) == 880 + 5 * (232 + 96) + 16_000


def check_kv_sizes(module):
    assert module.kv_bytes_per_token(3, 2, 16, 1, 4) == 2 * 3 * 2 * (16 + 4)


def test_sizes_by_hand():
    check_sizes(step_memory)
    check_kv_sizes(memory)


STEP, MEMORY, HOST = step_memory.__name__, memory.__name__, host_memory.__name__
ALL_BLOCKS = 'min(num_blocks, num_blocks_that_fit(bytes_per_block, torch.device("cpu"), DEFAULT_HOST_MEMORY_FRACTION))'
MUTANTS = [
    ("one row's logits", STEP, "limits.max_num_seqs, dtype.itemsize)", "1, dtype.itemsize)", check_step),
    ("one token's activations", STEP, "(model, limits.max_num_batched_tokens,", "(model, 1,", check_step),
    ("the step forgotten", MEMORY, "free_memory_bytes(device) - reserved_bytes)", "free_memory_bytes(device))", check_what_is_left),
    ("as large as the pool", HOST, ALL_BLOCKS, "num_blocks", check_swap),
    ("no logits", STEP, "4 * in_float32) + logits", "4 * in_float32)", check_sizes),
    ("two arrays of the MLP", STEP, "+ 3 * shape.intermediate_size", "+ 2 * shape.intermediate_size", check_sizes),
    ("one expert for a token", STEP, "k = shape.experts.num_experts_per_tok", "k = 1", check_sizes),
    ("experts' values of half size", STEP, "4 * in_float32", "value_bytes * in_float32", check_sizes),
    ("q forgotten", STEP, "(2 * shape.num_heads +", "(shape.num_heads +", check_sizes),
    ("one scale for a token", MEMORY, "(head_dim * value_bytes + scale_bytes)", "head_dim * value_bytes + scale_bytes", check_kv_sizes),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("row", MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(row, config):
    *planted, check = row
    KillTable.record(Mutant(*planted), partial(check, config=config) if check is check_step else check)
