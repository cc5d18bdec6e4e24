"""Engines whose experts are shared out over several processes: the tokens of one process, and an end to every loss."""

import re

import pytest
import torch

from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from tests.parallel import shared_engine
from tests.parallel.processes import is_running
from tests.parallel.test_sharding import check_logits
from tests.parallel.test_tensor_parallel import LIMIT_S, TINY, alone, greedy, prompt, share
from twophase import LLM
from twophase.core.errors import ConfigError
from twophase.model.config import load_config
from twophase.model.tensor_files import TensorFiles
from twophase.model.weights import load_weights
from twophase_features.parallel.sharding import Shard

WHOLE = {"enable_expert_parallel": True}


def test_two_ranks_write_what_one_writes_and_say_no_more_than_they_must(tmp_path):
    """Chunks, company, a shared prefix, swapping, forks; and every row that travels is counted."""
    folder, _ = make_folder("mixtral", tmp_path / "model")
    shared = prompt(0, 24)
    crowd = [(shared[:8] + prompt(seed, 9 + seed), greedy(24)) for seed in range(5)]
    forks = [(shared, greedy(9) | {"n": 3, "temperature": 1.0, "seed": 3}), ([*shared, 7, 8], greedy(9))]
    batches = [crowd, forks]
    options = TINY | {"model": str(folder), "num_kv_blocks": 26, "preemption_mode": "swap"}
    _, got = share(tmp_path, 2, batches, checked=True, **options, **WHOLE)
    llm, expected = alone(batches, **options)
    assert got["results"] == expected
    assert got["stats"] == shared_engine.stats_of(llm)
    assert got["stats"]["swapped_in"] > 0
    assert got["stats"]["hits"] > 0

    num_layers, num_steps = 2, got["stats"]["steps"]
    assert got["num_all_reduces"] == num_layers * num_steps  # of attention alone
    assert got["traffic"]["all_to_all"][0] == 3 * num_layers * num_steps  # counts, there, back
    assert got["traffic"]["all_gather"][0] == num_layers * num_steps
    hidden = 48 * 4
    tokens = [sum(chunk[3] for chunk in step.chunks) for step in llm.engine.trace]
    routed = [-(-count // 2) for count in tokens]  # by rank 0, which has one more where they are odd
    assert got["traffic"]["all_gather"][1] == num_layers * sum(routed) * hidden
    there = num_layers * sum(routed) * 2 * hidden  # two experts each
    counts = num_layers * num_steps * 4 * 8
    back = got["traffic"]["all_to_all"][1] - there - counts
    assert back % hidden == 0
    assert 0 < back < 2 * there  # as many rows as its experts were sent, by both


@pytest.mark.full
def test_three_ranks_with_layers_of_both_kinds(tmp_path):
    folder, _ = make_folder("qwen3-moe-some-dense", tmp_path / "model", num_key_value_heads=3)
    batches = [[(prompt(seed, 5 + 7 * seed), greedy(12)) for seed in range(4)]]
    options = TINY | {"model": str(folder), "num_kv_blocks": 64}
    _, got = share(tmp_path, 3, batches, **options, **WHOLE)
    assert got["results"] == alone(batches, **options)[1]


@pytest.mark.parametrize(
    ("how", "exit_code"),
    [pytest.param("SIGKILL", -9, id="killed"), pytest.param("SIGSTOP", None, id="stopped", marks=pytest.mark.full)],
)
def test_a_rank_lost_with_rows_under_way_is_an_error_in_time(how, exit_code, tmp_path):
    folder, _ = make_folder("qwen3-moe", tmp_path / "model")
    batches = [[(prompt(seed, 9), greedy(100)) for seed in range(4)], [(prompt(1, 5), greedy(4))]]
    # All-to-all 61 + 2 of rank 1: the third of a layer, when its experts have computed and the others wait for it.
    lose = [how, 61 + 2, "all_to_all"]
    ranks, got = share(tmp_path, 2, batches, lose, model=str(folder), num_kv_blocks=128, **TINY, **WHOLE)

    assert [each.exit_code for each in ranks] == [5, exit_code]
    ends = [(reason, error) for batch in got["results"] for request in batch for _, reason, error in request]
    assert {reason for reason, _ in ends} == {"error"}
    assert all(error.startswith("PeerLostError: rank 1 was lost while this process waited for") for _, error in ends)
    assert all("rows that other ranks' experts have computed" in error for _, error in ends)
    assert all(f"limit for a silent peer: {LIMIT_S:g} s" in error for _, error in ends)
    assert all(len(tokens) > 5 for request in got["results"][0] for tokens, _, _ in request)
    assert got["stats"]["in_use"] == 0
    assert got["noticed_at"] - float((tmp_path / "lost_at").read_text()) < 10
    assert not any(is_running(int(path.read_text())) for path in tmp_path.glob("*.pid"))


def test_what_cannot_be_shared_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("twophase.assembly.load_weights", None)
    sparse, _ = make_folder("qwen3-moe", tmp_path / "sparse", num_key_value_heads=6, num_experts=9)
    dense, _ = make_folder("llama", tmp_path / "dense")
    options = {"skip_tokenizer_init": True, "device": "cpu", **WHOLE}
    with pytest.raises(ConfigError, match=r"9 experts cannot .* tensor_parallel_size 2; use one of 1, 3, 9 processes"):
        LLM(str(sparse), tensor_parallel_size=2, **options)
    for size in (1, 2):
        with pytest.raises(ConfigError, match=r"experts of a model, and LlamaForCausalLM has no experts; leave it off"):
            LLM(str(dense), tensor_parallel_size=size, **options)


def test_experts_that_are_cut_must_have_a_part_for_every_rank(tmp_path):
    folder, _ = make_folder("qwen3-moe", tmp_path, num_key_value_heads=6, moe_intermediate_size=32)
    with pytest.raises(ConfigError, match="intermediate_size of experts gives 2 parts"):
        Shard(load_config(folder), 0, 3)
    assert Shard(load_config(folder), 0, 3, has_whole_experts=True).experts == slice(0, 2)
    # The MLP of layers that are not there is no obstacle.
    narrow, _ = make_folder("qwen3-moe", tmp_path / "narrow", num_key_value_heads=6, intermediate_size=16)
    assert Shard(load_config(narrow), 1, 2).config.experts.intermediate_size == 16


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
