"""Engines whose model, or whose experts, are shared by several processes: the tokens of one process, and an end to
every loss."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from tests.parallel import shared_engine
from tests.parallel.processes import is_running
from tests.parallel.test_sharding import check_logits
from twophase import LLM
from twophase.core.errors import ConfigError
from twophase.model.config import load_config
from twophase.model.tensor_files import TensorFiles
from twophase.model.weights import load_weights
from twophase_features.parallel.sharding import Shard
from twophase_tools.launch import run_local

SCRIPT = Path(shared_engine.__file__)
LIMIT_S = 5.0
TINY = {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 24, "dtype": "float32"}
WHOLE = {"enable_expert_parallel": True}


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


def busy_batches():
    """For few blocks, so that sequences are swapped out and in; a shared prefix; completions that fork; penalties."""
    shared = prompt(0, 24)
    crowd = [(shared[:8] + prompt(seed, 9 + seed), greedy(24)) for seed in range(5)]
    forks = [(shared, greedy(9) | {"n": 3, "temperature": 1.0, "seed": 3}), ([*shared, 7, 8], greedy(9))]
    return [crowd, forks, [(shared + prompt(9, 5), greedy(6) | {"repetition_penalty": 1.3})]]


def check_equal(tmp_path, folder, world_size, checked=False, **options):
    """The tokens and the counts of one process; returns what the ranks printed, and the engine alone."""
    options = TINY | {"model": str(folder), "num_kv_blocks": 26, "preemption_mode": "swap"} | options
    _, got = share(tmp_path, world_size, busy_batches(), checked=checked, **options)
    llm, expected = alone(busy_batches(), **options)
    assert got["results"] == expected
    assert got["stats"] == shared_engine.stats_of(llm)
    assert got["stats"]["swapped_in"] > 0
    assert got["stats"]["hits"] > 0
    return got, llm


def test_three_ranks_under_pressure_swap_and_fork_and_hit_like_one(tmp_path):
    folder, _ = make_folder("qwen3", tmp_path / "model", num_key_value_heads=3, attention_bias=True)
    check_equal(tmp_path, folder, 3)


def test_two_ranks_of_whole_experts_say_no_more_than_they_must(tmp_path):
    folder, _ = make_folder("mixtral", tmp_path / "model")
    got, llm = check_equal(tmp_path, folder, 2, checked=True, **WHOLE)
    layer_steps = 2 * got["stats"]["steps"]
    assert got["num_all_reduces"] == layer_steps  # of attention alone
    assert got["traffic"]["all_to_all"][0] == 3 * layer_steps  # counts, there, back
    tokens = [sum(chunk[3] for chunk in step.chunks) for step in llm.engine.trace]
    routed = sum(-(-count // 2) for count in tokens)  # by rank 0, which has one more where they are odd
    assert got["traffic"]["all_gather"] == [layer_steps, 2 * routed * 48 * 4]


@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("family", "options", "at", "waited_for"),
    [
        # All-reduce 61 is the first of a step's second layer: pages of the step are written, and the others wait.
        ("smollm2", {}, (61 + 1,), ""),
        # The third all-to-all of a layer, when the rank's experts have computed and the others wait for it.
        pytest.param(
            *("qwen3-moe", WHOLE, (61 + 2, "all_to_all"), "rows that other ranks' experts have computed"),
            marks=pytest.mark.full,
        ),
    ],
    ids=["a sum", "rows"],
)
def test_a_lost_rank_is_an_error_in_time_and_leaves_nothing_behind(how, family, options, at, waited_for, tmp_path):
    folder, _ = make_folder(family, tmp_path / "model")
    batches = [[(prompt(seed, 9), greedy(100)) for seed in range(4)], [(prompt(1, 5), greedy(4))]]
    options = TINY | {"model": str(folder), "num_kv_blocks": 128} | options
    ranks, got = share(tmp_path, 2, batches, [how, *at], **options)

    assert [each.exit_code for each in ranks] == [5, {"SIGKILL": -9, "SIGSTOP": None}[how]]
    ends = [(reason, error) for batch in got["results"] for request in batch for _, reason, error in request]
    assert {reason for reason, _ in ends} == {"error"}
    assert all(error.startswith("PeerLostError: rank 1 was lost while this process waited for") for _, error in ends)
    assert all(waited_for in error and f"limit for a silent peer: {LIMIT_S:g} s" in error for _, error in ends)
    assert all(len(tokens) > 5 for request in got["results"][0] for tokens, _, _ in request)  # it was in the middle
    assert got["stats"]["in_use"] == 0
    assert got["noticed_at"] - float((tmp_path / "lost_at").read_text()) < 10
    assert not any(is_running(int(path.read_text())) for path in tmp_path.glob("*.pid"))


RANKS = {"tensor_parallel_size": 2}
ODD_EXPERTS = {"num_key_value_heads": 6, "num_experts": 9}


@pytest.mark.parametrize(
    ("family", "changes", "options", "message"),
    [
        ("llama", {}, {"tensor_parallel_size": 3}, "num_key_value_heads gives 2 parts"),
        ("llama", {}, RANKS, r"not started by torchrun: RANK, WORLD_SIZE.* `torchrun --nproc-per"),
        ("qwen3-moe", ODD_EXPERTS, WHOLE | RANKS, r"9 experts cannot .*size 2; use one of 1, 3, 9 processes"),
        ("llama", {}, WHOLE, r"experts of a model, and LlamaForCausalLM has no experts; leave it off"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_anything_is_loaded(
    family, changes, options, message, tmp_path, monkeypatch
):
    folder, _ = make_folder(family, tmp_path, **changes)
    monkeypatch.setattr("twophase.assembly.load_weights", None)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=message):
        LLM(str(folder), skip_tokenizer_init=True, device="cpu", **options)


@pytest.mark.full
def test_the_command_prints_with_two_ranks_what_it_prints_with_one(tiny_folder):
    command = [sys.executable, "-m", "twophase_tools", "generate", "a tiny prompt", "--model", str(tiny_folder)]
    command += ["--regex", "[a-z]{6}"]
    sizes = [], ["--tensor-parallel-size", "2"]
    alone, shared = (subprocess.run(command + each, capture_output=True, text=True, timeout=120) for each in sizes)
    assert (shared.returncode, shared.stdout) == (0, alone.stdout)
    assert len(alone.stdout.strip()) == 6


def test_one_process_has_all_experts(tmp_path):
    folder, _ = make_folder("mixtral", tmp_path)
    options = {"skip_tokenizer_init": True, "device": "cpu", "num_kv_blocks": 8}
    llm = LLM(str(folder), **options, **WHOLE)
    assert len(llm.model.weights.layers[0].mlp.down.layers) == 4
    got, expected = (each.generate({"prompt_token_ids": [5, 6, 7]}) for each in (llm, LLM(str(folder), **options)))
    assert got[0].outputs[0].token_ids == expected[0].outputs[0].token_ids


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe"])
def test_only_this_ranks_experts_are_read(family, tmp_path, monkeypatch):
    folder, _ = make_folder(family, tmp_path)
    config = load_config(folder)
    read, original = [], TensorFiles.read
    monkeypatch.setattr(TensorFiles, "read", lambda self, name: read.append(name) or original(self, name))
    num_each = config.experts.num_experts // 2
    for rank in range(2):
        shard = Shard(config, rank, 2, has_whole_experts=True)
        read.clear()
        weights = load_weights(folder, config, torch.float32, torch.device("cpu"), shard.cut, shard.experts)
        found = {int(match[1]) for name in read if (match := re.search(r"\.experts\.(\d+)\.", name))}
        assert found == set(range(rank * num_each, (rank + 1) * num_each))
        assert all(len(layer.mlp.gate_up.layers) == num_each for layer in weights.layers)


MUTANTS = [
    ("tokens are routed by every rank", "x[start : start + size]", "x[:size]"),
    ("ranks in another order", "received.flatten()", "received.flip(0).flatten()"),
    ("rows stay sorted by expert", "outbox[by_expert] = ", "outbox[:] = "),
    ("rows are computed as they came", "compute(inbox[by_expert], totals)", "compute(inbox, totals)"),
    ("rounded down", "size = -(-x.shape[0] // self._peers.world_size)", "size = max(1, x.shape[0] // self._peers.world_size)"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[name for name, _, _ in MUTANTS])
def test_mutant_is_killed(name, old, new, tmp_path):
    folder, _ = make_folder("qwen3-moe", tmp_path)
    mutant = Mutant(name, "twophase_features.parallel.expert_parallel", old, new)
    KillTable.record(mutant, lambda module: check_logits(folder, 2, dispatcher=module.ExpertParallel))
