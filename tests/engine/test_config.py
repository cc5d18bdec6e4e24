"""`EngineConfig`: each option has a field, a rule and its documentation, and bad values are refused by name."""

import re
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase import config as config_module
from twophase.config import RULES, EngineConfig, configured
from twophase.core.errors import ConfigError
from twophase.scheduling.policy import PriorityPolicy
from twophase_tools.cli.engine_options import help_for

pytestmark = pytest.mark.unchecked_types

NAMES = [field.name for field in fields(EngineConfig)]
BAD = {
    "device": [3, None],
    "dtype": ["float8", None, torch.float32],
    "quantization": ["int3", 8, ["int4"]],
    "attention_backend": ["flash", None, 5],
    "block_size": [0, 5, -4, 16.0, True, "16"],
    "num_kv_blocks": [0, 1.5, "4"],
    "kv_memory_fraction": [0, 1.5, float("nan"), "0.5"],
    "max_num_seqs": [0, None, 2.5],
    "max_num_batched_tokens": [0, "8"],
    "max_model_len": [2.5, "8"],
    "enable_prefix_caching": [1, None, "yes"],
    "enable_chunked_prefill": [0, "no"],
    "kv_cache_dtype": ["int4", None],
    "sliding_window": [0, -1, 8.0],
    "num_attention_sinks": [-1, None],
    "seed": [None, 1.5, "0", -1, 2**64],
    "skip_tokenizer_init": [1],
    "use_step_graphs": ["False"],
    "max_trace_steps": [-1, 1.5],
    "policy": ["priority", PriorityPolicy, SimpleNamespace(rank=len, plan=len)],  # the last is no Policy
    "admission": ["Reserve", None],
    "kv_tier": ["host", SimpleNamespace(match=len)],
    "preemption_mode": ["Swap", None],
    "num_swap_blocks": [0, 1.5],
    "admission_watermark": [1, -0.1, float("nan"), None],
    "speculative_config": ["ngram", {"method": "ngram"}],
    "drafter": ["ngram", SimpleNamespace(propose=len)],
    "tensor_parallel_size": [0, 1.5],
    "enable_expert_parallel": [1, None, "yes"],
    "peer_timeout_s": [0, -1, float("inf"), None],
    "cache_factory": [5],
    "scheduler_factory": [5],
}


def test_every_option_has_a_rule_documentation_and_a_bad_value():
    assert list(RULES) == NAMES == list(BAD)
    assert all(len(help_for(name)) > 10 for name in NAMES)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_bad_values_are_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"^{name} must be .*, got {re.escape(repr(value)[:40])}"):
        EngineConfig(**{name: value})


def check_numpy_scalars(module=config_module):
    options = {"block_size": np.int64(8), "num_kv_blocks": np.int32(4), "admission_watermark": np.float32(0.5)}
    config = module.EngineConfig(**options, enable_prefix_caching=np.True_, max_num_seqs=torch.tensor(3))
    assert (config.block_size, config.num_kv_blocks, config.admission_watermark) == (8, 4, 0.5)
    assert config.enable_prefix_caching is True
    assert all(type(value) is int for value in (config.block_size, config.num_kv_blocks, config.max_num_seqs))


def test_scalars_of_numpy_and_torch_become_plain_numbers():
    check_numpy_scalars()


def check_together(module=config_module):
    for options, message in [
        ({"num_kv_blocks": 4, "kv_memory_fraction": 0.5}, "num_kv_blocks and kv_memory_fraction both size the pool"),
        ({"policy": PriorityPolicy(), "scheduler_factory": len}, "policy and scheduler_factory both decide"),
        ({"num_swap_blocks": 4}, "num_swap_blocks sizes .* got 4 with preemption_mode='recompute'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            module.EngineConfig(**options)
    module.EngineConfig(num_swap_blocks=4, preemption_mode="swap")


def test_options_that_contradict_each_other():
    check_together()


def test_options_in_place_of_a_configs_own():
    base = EngineConfig(block_size=4, seed=7)
    assert configured(base, {}) == base
    assert configured(base, {"seed": 8}) == EngineConfig(block_size=4, seed=8)
    assert configured(None, {"seed": 8}) == EngineConfig(seed=8)
    with pytest.raises(ConfigError, match="seed must be"):
        configured(base, {"seed": "x"})
    with pytest.raises(TypeError, match=r"'max_seqs'; did you mean 'max_num_seqs'\?"):
        configured(base, {"max_seqs": 8})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        configured(None, {"zzz": 8})


MUTANTS = [
    ("swap blocks of nothing", "or self.num_swap_blocks is not None", "", check_together),
    ("two sizes of a pool", '("num_kv_blocks", "kv_memory_fraction",', '("num_kv_blocks", "num_swap_blocks",', check_together),
    ("two schedulers", '("policy", "scheduler_factory",', '("policy", "drafter",', check_together),
    ("values as they came", "apply_rules(self, rules, ConfigError)", "pass", check_numpy_scalars),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new", "check"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_config_mutants_are_killed(name, old, new, check):
    KillTable.record(Mutant(name, "twophase.config", old, new), check)
