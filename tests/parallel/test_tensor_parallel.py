"""Engines whose model is shared by several processes: the tokens of one process, and an end to every loss."""

import json
import random
from pathlib import Path

import pytest
import torch

from tests.model.tiny import make_folder
from tests.parallel import shared_engine
from tests.parallel.processes import is_running
from twophase import LLM
from twophase.core.errors import ConfigError
from twophase_tools.launch import run_local

SCRIPT = Path(shared_engine.__file__)
LIMIT_S = 5.0
TINY = {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 24, "dtype": "float32"}


def greedy(max_tokens: int) -> dict:
    return {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True}


def prompt(seed: int, length: int, vocab_size: int = 131) -> list[int]:
    return random.Random(seed).choices(range(3, vocab_size), k=length)


def share(tmp_path: Path, world_size: int, batches, lose=None, checked=False, **options):
    """The ranks' results, and what rank 0 printed."""
    options = {"tensor_parallel_size": world_size, "peer_timeout_s": LIMIT_S, "device": "cpu", **options}
    job = {"folder": str(tmp_path), "options": options, "batches": batches, "lose": lose, "checked": checked}
    ranks = run_local(SCRIPT, world_size, [json.dumps(job)], 120, check=lose is None)
    return ranks, json.loads(ranks[0].stdout)


def alone(batches, **options):
    torch.set_num_threads(1)
    llm = LLM(**options, device="cpu", skip_tokenizer_init=True)
    return llm, shared_engine.serve(llm, batches)


@pytest.mark.full
def test_two_ranks_write_what_one_writes_with_the_default_model(smollm2_folder, tmp_path):
    batches = [[(prompt(1, 40, 49_000), greedy(8)), (prompt(2, 7, 49_000), greedy(8)), ([504, 3575, 282], greedy(8))]]
    options = {"model": str(smollm2_folder), "num_kv_blocks": 16, "max_num_seqs": 4, "dtype": "float32"}
    _, got = share(tmp_path, 2, batches, checked=True, **options)
    llm, expected = alone(batches, **options)
    assert got["results"] == expected
    num_layers, num_tokens = 30, sum(chunk[3] for step in llm.engine.trace for chunk in step.chunks)
    assert got["num_all_reduces"] == 2 * num_layers * got["stats"]["steps"]
    assert got["all_reduce_bytes"] == 2 * num_layers * num_tokens * 576 * 4


def test_three_ranks_under_pressure_swap_and_fork_and_hit_like_one(tmp_path):
    """Few blocks, so that sequences are swapped out and in; a shared prefix; completions that fork; penalties."""
    folder, _ = make_folder("qwen3", tmp_path / "model", num_key_value_heads=3, attention_bias=True)
    shared = prompt(0, 24)
    crowd = [(shared[:8] + prompt(seed, 9 + seed), greedy(24)) for seed in range(5)]
    forks = [(shared, greedy(9) | {"n": 3, "temperature": 1.0, "seed": 3}), ([*shared, 7, 8], greedy(9))]
    batches = [crowd, forks, [(shared + prompt(9, 5), greedy(6) | {"repetition_penalty": 1.3})]]
    options = TINY | {"model": str(folder), "num_kv_blocks": 26, "preemption_mode": "swap"}
    _, got = share(tmp_path, 3, batches, **options)
    llm, expected = alone(batches, **options)
    assert got["results"] == expected
    assert got["stats"] == shared_engine.stats_of(llm)
    assert got["stats"]["swapped_in"] > 0
    assert got["stats"]["hits"] > 0


@pytest.mark.parametrize(
    ("how", "exit_code"),
    [pytest.param("SIGKILL", -9, id="killed"), pytest.param("SIGSTOP", None, id="stopped", marks=pytest.mark.full)],
)
def test_a_lost_rank_is_an_error_in_time_and_leaves_nothing_behind(how, exit_code, tmp_path):
    folder, _ = make_folder("smollm2", tmp_path / "model")
    batches = [[(prompt(seed, 9), greedy(100)) for seed in range(4)], [(prompt(1, 5), greedy(4))]]
    # All-reduce 61 is the first of a step's second layer: pages of the step are written, and the others wait.
    ranks, got = share(tmp_path, 2, batches, [how, 61 + 1], model=str(folder), num_kv_blocks=128, **TINY)

    assert [each.exit_code for each in ranks] == [5, exit_code]
    reasons = {reason for batch in got["results"] for request in batch for _, reason, _ in request}
    errors = {error for batch in got["results"] for request in batch for _, _, error in request}
    assert reasons == {"error"}
    assert all(error.startswith("PeerLostError: rank 1 was lost while this process waited for") for error in errors)
    assert all(f"limit for a silent peer: {LIMIT_S:g} s" in error for error in errors)
    assert all(len(tokens) > 5 for request in got["results"][0] for tokens, _, _ in request)  # it was in the middle
    assert got["stats"]["in_use"] == 0
    assert got["noticed_at"] - float((tmp_path / "lost_at").read_text()) < 10
    assert not any(is_running(int(path.read_text())) for path in tmp_path.glob("*.pid"))


def test_what_cannot_be_shared_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    folder, _ = make_folder("llama", tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="num_key_value_heads gives 2 parts"):
        LLM(str(folder), tensor_parallel_size=3, skip_tokenizer_init=True)
    with pytest.raises(ConfigError, match=r"not started by torchrun: RANK, WORLD_SIZE.* `torchrun --nproc-per-node N"):
        LLM(str(folder), tensor_parallel_size=2, skip_tokenizer_init=True)
    with pytest.raises(ConfigError, match="tensor_parallel_size must be a whole number >= 1, got 0"):
        LLM(str(folder), tensor_parallel_size=0, skip_tokenizer_init=True)
