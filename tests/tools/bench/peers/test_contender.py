"""The peers as contenders, with stand-ins for their packages in a real process of its own."""

import json
import sys

import pytest

from tests.tools.bench.peers import fakes
from twophase.model.config import load_config
from twophase_tools.bench.contenders import Setup
from twophase_tools.bench.peers import contender, process
from twophase_tools.bench.peers.contender import LLAMA_CPP, VLLM, Peers, open_peer
from twophase_tools.bench.peers.process import NotRunError
from twophase_tools.bench.workload import Workload, random_workload

WORKLOAD = random_workload("ragged", 5, (1, 20), (1, 9), vocab_size=100)


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """What the stand-ins saw when they loaded a model."""
    variables = fakes.install(tmp_path)
    monkeypatch.setattr(process, "NOT_FOR_PEERS", ())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return lambda: [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]


@pytest.fixture
def peers(tmp_path):
    (tmp_path / "workshop").mkdir()
    return Peers(dict.fromkeys((VLLM, LLAMA_CPP), sys.executable), tmp_path / "workshop", 60.0)


def setup(folder, dtype="float32", quantization=None, device="cpu"):
    return Setup(str(folder), device, dtype, "torch", 2, quantization)


@pytest.mark.parametrize("who", [VLLM, LLAMA_CPP])
def test_every_request_gets_its_own_tokens(who, seen, peers, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(contender.gguf_weights, "find", lambda *args: tmp_path / "model.gguf")
    peer = open_peer(who, setup(tiny_folder), WORKLOAD, peers)
    try:
        for workload in (Workload("warm-up", WORKLOAD.prompts[:2], (2, 2)), WORKLOAD, WORKLOAD):
            run = peer.run(workload)
            asked = zip(workload.prompts, workload.output_lens, strict=True)
            assert run.token_ids == tuple(fakes.continuation(*each) for each in asked)
            assert all(0 < ttft_s <= run.elapsed_s for ttft_s in run.ttft_s)
        record = peer.peer_record()
        assert (record.name, record.waiting_cpu >= 0) == (who, True)
    finally:
        peer.close()
    assert len(seen()) == 1  # loaded once


def test_vllm_gets_the_weights_threads_and_memory_that_we_get(seen, peers, tiny_folder):
    open_peer(VLLM, setup(tiny_folder), WORKLOAD, peers).close()
    open_peer(VLLM, setup(tiny_folder, "bfloat16", "W8A8"), WORKLOAD, peers).close()
    (plain, dtype, threads, kv_bytes), (packed, *_, fewer_bytes) = seen()
    assert (plain, dtype, threads) == (str(tiny_folder), "float32", "2")
    assert packed == str(peers.workshop / "W8A8")
    config = load_config(tiny_folder)
    token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    assert kv_bytes == 2 * fewer_bytes == (WORKLOAD.num_blocks(128) + 1) * 128 * token_bytes


def test_llama_cpp_gets_our_threads_and_a_file_of_its_own_kind(seen, peers, monkeypatch, tmp_path):
    monkeypatch.setattr(contender.gguf_weights, "find", lambda folder, kind, workshop: tmp_path / f"{kind}.gguf")
    for dtype, quantization in (("float32", None), ("bfloat16", None), ("bfloat16", "Q8_0")):
        open_peer(LLAMA_CPP, setup("folder", dtype, quantization), WORKLOAD, peers).close()
    files = [str(tmp_path / f"{kind}.gguf") for kind in ("F32", "BF16", "Q8_0")]
    assert seen() == [[files[0], 0, 2, 2], [files[1], 1, 2, 2], [files[2], 1, 2, 2]]


@pytest.mark.parametrize(("who", "option"), [(VLLM, "--vllm-python"), (LLAMA_CPP, "--llama-cpp-python")])
def test_a_peer_without_an_interpreter_names_the_option(who, option, tmp_path):
    with pytest.raises(NotRunError, match=f"give {option}"):
        open_peer(who, setup("folder"), WORKLOAD, Peers({}, tmp_path, 60.0))


def test_peers_are_compared_on_a_cpu(peers):
    with pytest.raises(NotRunError, match="on a CPU, not on cuda"):
        open_peer(VLLM, setup("folder", device="cuda"), WORKLOAD, peers)
