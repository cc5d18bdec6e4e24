"""vLLM, with a stand-in for its package in a real process of its own; and what our engine is started with."""

import json
import sys

import pytest
import torch

from tests.tools.bench.peers import fakes
from twophase.model.config import load_config
from twophase_tools.bench.engine import Workload
from twophase_tools.bench.peers import launches, with_twophase
from twophase_tools.bench.peers.launches import VLLM, Setup, launch_of
from twophase_tools.bench.peers.process import PeerError, PeerProcess

PROMPTS = ((5, 17, 3, 88, 2, 9, 41), (1,), (60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70), (7, 7), (90, 3, 14))
WORKLOAD = Workload("ragged", PROMPTS, (9, 1, 4, 6, 2))


@pytest.fixture
def python(tmp_path):
    """An interpreter that has the stand-in, and does not find what ours does."""
    variables = fakes.install(tmp_path)
    path = tmp_path / "python"
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    path.write_text(f'#!/bin/sh\n{words} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def seen(tmp_path):
    """What the stand-in saw when it loaded a model."""
    return lambda: [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]


@pytest.fixture
def setup(tmp_path, python):
    def setup(folder, dtype="float32", quantization=None, device="cpu"):
        return Setup(str(folder), device, dtype, "torch", 2, python, quantization)

    return setup


def opened(who, setup):
    return PeerProcess(launch_of(who, setup, WORKLOAD.lengths))


def test_every_request_gets_its_own_tokens(seen, setup, tiny_folder):
    peer = opened(VLLM, setup(tiny_folder))
    try:
        for prompts, lengths in ((PROMPTS[:2], (2, 2)), (PROMPTS, WORKLOAD.output_lens), (PROMPTS, (1,) * 5)):
            run = peer.run(prompts, lengths)
            asked = zip(prompts, lengths, strict=True)
            assert run["token_ids"] == [list(fakes.continuation(*each)) for each in asked]
            assert all(0 < ttft_s <= run["elapsed_s"] for ttft_s in run["ttft_s"])
    finally:
        peer.close()
    assert len(seen()) == 1  # loaded once


def test_vllm_gets_the_weights_threads_and_memory_that_we_get(seen, setup, tiny_folder):
    opened(VLLM, setup(tiny_folder)).close()
    opened(VLLM, setup(tiny_folder, "bfloat16")).close()
    (folder, dtype, threads, kv_bytes), (*_, fewer_bytes) = seen()
    assert (folder, dtype, threads) == (str(tiny_folder), "float32", "2")
    config = load_config(tiny_folder)
    token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    assert kv_bytes == 2 * fewer_bytes == (5 + 1) * 128 * token_bytes  # a block for each sequence, and its own


def test_our_engine_has_room_for_all_and_nothing_is_found_again(tiny_folder, setup):
    settings = launch_of(launches.OURS, setup(tiny_folder), WORKLOAD.lengths).settings
    engine = with_twophase.Engine(settings | {"num_threads": torch.get_num_threads()})
    for _ in range(2):
        engine.run([list(prompt) for prompt in PROMPTS], list(WORKLOAD.output_lens))
    stats = engine._llm.engine.stats()
    assert engine._llm.kv_cache.num_blocks == sum(-(-length // 16) for length in WORKLOAD.lengths)
    assert (stats.cache.num_hit_tokens, stats.num_preemptions) == (0, 0)
    assert engine._llm.scheduler.config.max_num_batched_tokens == settings["step_tokens"]


def test_what_cannot_run_says_why(tiny_folder, setup):
    with pytest.raises(PeerError, match="give --vllm-python"):
        launch_of(VLLM, Setup(str(tiny_folder), "cpu", "float32", "torch", 1, None), [1])
    with pytest.raises(PeerError, match="on a CPU, not on cuda"):
        launch_of(VLLM, setup(tiny_folder, device="cuda"), [1])
