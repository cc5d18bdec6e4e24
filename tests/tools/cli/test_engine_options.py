"""Flags of the engine: they reach `EngineConfig` under its names, and what is not given is its default."""

import argparse
from dataclasses import fields

import pytest

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_tools.cli.engine_options import add_engine_options, engine_config, engine_options
from twophase_tools.cli.main import build_parser

WORDS = {
    "device": ("cpu", "cpu"),
    "dtype": ("bfloat16", "bfloat16"),
    "attention_backend": ("torch", "torch"),
    "block_size": ("8", 8),
    "num_kv_blocks": ("9", 9),
    "max_num_seqs": ("3", 3),
    "max_num_batched_tokens": ("64", 64),
    "sliding_window": ("12", 12),
    "num_attention_sinks": ("2", 2),
    "policy": ("chunked:max_tokens=5", ChunkedPrefillPolicy(5)),
    "admission": ("reserve", "reserve"),
    "tensor_parallel_size": ("2", 2),
    "kv_cache_dtype": ("int8", "int8"),
    "enable_expert_parallel": (None, True),
}


@pytest.mark.parametrize("name", WORDS)
def test_any_option_of_the_engine_can_be_a_flag(name):
    parser = argparse.ArgumentParser()
    add_engine_options(parser, name)
    assert engine_options(parser.parse_args([])) == {}
    assert engine_config(parser.parse_args([])) == EngineConfig()
    word, value = WORDS[name]
    flag = {"attention_backend": "--backend", "num_attention_sinks": "--attention-sinks"}.get(name)
    words = [flag or f"--{name.replace('_', '-')}", word]
    given = parser.parse_args([each for each in words if each is not None])
    assert engine_options(given) == {name: value}
    assert engine_config(given) == EngineConfig(**{name: value})
    assert len(parser.format_help()) > 60


def test_a_broken_rule_is_named():
    args = build_parser().parse_args(["bench", "serve", "--num-kv-blocks", "0"])
    with pytest.raises(ConfigError, match="num_kv_blocks must be a whole number >= 1, or None, got 0"):
        engine_config(args)


def test_the_seed_of_a_request_is_no_option_of_the_engine():
    args = build_parser().parse_args(["generate", "x", "--seed", "5", "--sliding-window", "7"])
    assert engine_options(args) == {"sliding_window": 7}
    assert {field.name for field in fields(EngineConfig)} >= set(WORDS)
