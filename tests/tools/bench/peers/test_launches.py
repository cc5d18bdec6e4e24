"""Other people's engines, with stand-ins for their packages in a real process of its own."""

import json
import sys

import pytest

from tests.tools.bench.peers import fakes
from twophase.model.config import load_config
from twophase_tools.bench.engine import Workload
from twophase_tools.bench.peers import launches
from twophase_tools.bench.peers.launches import LLAMA_CPP, VLLM, Setup, launch_of
from twophase_tools.bench.peers.process import NotRunError, PeerProcess

PROMPTS = ((5, 17, 3, 88, 2, 9, 41), (1,), (60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70), (7, 7), (90, 3, 14))
WORKLOAD = Workload("ragged", PROMPTS, (9, 1, 4, 6, 2))


@pytest.fixture
def python(tmp_path):
    """An interpreter that has the stand-ins, and does not find what ours does."""
    variables = fakes.install(tmp_path)
    path = tmp_path / "python"
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    path.write_text(f'#!/bin/sh\n{words} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def seen(tmp_path):
    """What the stand-ins saw when they loaded a model."""
    return lambda: [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]


@pytest.fixture
def setup(tmp_path, python):
    def setup(folder, dtype="float32", quantization=None, device="cpu"):
        pythons = dict.fromkeys((VLLM, LLAMA_CPP), python)
        return Setup(str(folder), device, dtype, "torch", 2, pythons, tmp_path, quantization)

    return setup


def opened(who, setup):
    return PeerProcess(launch_of(who, setup, WORKLOAD.lengths), 60.0)


@pytest.mark.parametrize("who", [VLLM, LLAMA_CPP])
def test_every_request_gets_its_own_tokens(who, seen, setup, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(launches.gguf_weights, "find", lambda *args: tmp_path / "model.gguf")
    peer = opened(who, setup(tiny_folder))
    try:
        for prompts, lengths in ((PROMPTS[:2], (2, 2)), (PROMPTS, WORKLOAD.output_lens), (PROMPTS, (1,) * 5)):
            run = peer.run(prompts, lengths)
            asked = zip(prompts, lengths, strict=True)
            assert run["token_ids"] == [list(fakes.continuation(*each)) for each in asked]
            assert all(0 < ttft_s <= run["elapsed_s"] for ttft_s in run["ttft_s"])
    finally:
        peer.close()
    assert len(seen()) == 1  # loaded once


def test_vllm_gets_the_weights_threads_and_memory_that_we_get(seen, setup, tiny_folder, tmp_path):
    opened(VLLM, setup(tiny_folder)).close()
    opened(VLLM, setup(tiny_folder, "bfloat16", "W8A8")).close()
    (plain, dtype, threads, kv_bytes), (packed, *_, fewer_bytes) = seen()
    assert (plain, dtype, threads) == (str(tiny_folder), "float32", "2")
    assert packed == str(tmp_path / "W8A8")
    config = load_config(tiny_folder)
    token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    assert kv_bytes == 2 * fewer_bytes == (5 + 1) * 128 * token_bytes  # a block for each sequence, and its own


def test_llama_cpp_gets_our_threads_and_a_file_of_its_own_kind(seen, setup, monkeypatch, tmp_path):
    monkeypatch.setattr(launches.gguf_weights, "find", lambda folder, kind, workshop: tmp_path / f"{kind}.gguf")
    for dtype, quantization in (("float32", None), ("bfloat16", None), ("bfloat16", "Q8_0")):
        opened(LLAMA_CPP, setup("folder", dtype, quantization)).close()
    files = [str(tmp_path / f"{kind}.gguf") for kind in ("F32", "BF16", "Q8_0")]
    assert seen() == [[files[0], 0, 2, 2], [files[1], 1, 2, 2], [files[2], 1, 2, 2]]


def test_our_engine_has_room_for_all_and_nothing_is_found_again(tiny_folder, setup):
    settings = launch_of(launches.OURS, setup(tiny_folder, "bfloat16", "int8"), WORKLOAD.lengths).settings
    assert settings["options"]["num_kv_blocks"] == sum(-(-length // 16) for length in WORKLOAD.lengths)
    assert (settings["num_threads"], settings["options"]["quantization"]) == (2, "int8")


@pytest.mark.parametrize(("who", "option"), [(VLLM, "--vllm-python"), (LLAMA_CPP, "--llama-cpp-python")])
def test_who_cannot_run_says_why(who, option, setup, tmp_path):
    with pytest.raises(NotRunError, match=f"give {option}"):
        launch_of(who, Setup("folder", "cpu", "float32", "torch", 1, {}, tmp_path), [1])
    with pytest.raises(NotRunError, match="on a CPU, not on cuda"):
        launch_of(who, setup("folder", device="cuda"), [1])
