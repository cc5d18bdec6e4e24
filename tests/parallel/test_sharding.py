"""Each rank's part of a model: parts make a whole, and what the ranks compute together is what one computes alone."""

from types import ModuleType

import pytest
import torch

from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from tests.parallel.together import sharded_logits, whole_runner
from twophase.core.errors import ConfigError
from twophase.core.plan import ScheduledChunk
from twophase.model.config import load_config
from twophase_features.parallel import sharding
from twophase_features.parallel.expert_parallel import ExpertParallel
from twophase_features.parallel.sharding import Shard

# A prompt and a later decode of it, beside another prompt: attention reads pages of both kinds.
TOKENS = list(range(3, 20))
STEPS = [
    [ScheduledChunk(0, TOKENS[:9], 0, [1, 2, 3], 1)],
    [ScheduledChunk(0, TOKENS[9:10], 9, [1, 2, 3], 1), ScheduledChunk(1, TOKENS[4:17], 0, [5, 4, 7, 6], 1)],
    [ScheduledChunk(0, TOKENS[10:11], 10, [1, 2, 3], 1)],
]
# Sums over ranks are taken in another order than inside of one matrix product. Logits here are of the order of 10.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}

CASES = [
    pytest.param("smollm2", 2, {}, id="tied, KV heads 2+1"),
    pytest.param("smollm2", 3, {}, id="a KV head each, MLP 32+32+16"),
    pytest.param("llama-biases", 2, {}, id="biases everywhere, counted once"),
    pytest.param("qwen2", 2, {}, id="qkv biases"),
    pytest.param("qwen3", 2, {}, id="q and k norms"),
    pytest.param("llama-wide-heads", 4, {}, id="no GQA, 2+2+1+1 heads of 16"),
    pytest.param("mixtral", 2, {}, id="experts, each cut, 48+32"),
    pytest.param("qwen3-moe-some-dense", 2, {}, id="experts cut, dense layers too"),
    pytest.param("mistral", 2, {"intermediate_size": 33}, id="a window, an odd MLP, an odd vocabulary"),
]


def check_logits(folder, world_size: int, module: ModuleType = sharding, dispatcher: type | None = None) -> None:
    whole = whole_runner(folder)
    for step, logits in zip(STEPS, sharded_logits(folder, world_size, STEPS, module, dispatcher), strict=True):
        torch.testing.assert_close(logits, whole.run(step), **TOLERANCE)


@pytest.mark.parametrize(("family", "world_size", "changes"), CASES)
def test_ranks_together_compute_what_one_computes_alone(family, world_size, changes, tmp_path):
    folder, _ = make_folder(family, tmp_path, **changes)
    check_logits(folder, world_size)


WHOLE_EXPERTS = [
    pytest.param("mixtral", 2, {}, id="two experts each"),
    pytest.param("qwen3-moe", 2, {}, id="a router that normalises"),
    pytest.param("qwen3-moe-some-dense", 2, {}, id="dense layers are cut, experts are not"),
    pytest.param(
        "qwen3-moe", 3, {"num_key_value_heads": 3}, id="three ranks, and a step that leaves one without tokens"
    ),
]


@pytest.mark.parametrize(("family", "world_size", "changes"), WHOLE_EXPERTS)
def test_ranks_of_whole_experts_compute_what_one_computes_alone(family, world_size, changes, tmp_path):
    folder, _ = make_folder(family, tmp_path, **changes)
    check_logits(folder, world_size, dispatcher=ExpertParallel)


NARROW_EXPERTS = {"num_key_value_heads": 6, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("family", "changes", "world_size", "said"),
    [
        ("llama", {}, 3, "tensor_parallel_size 3 .* num_key_value_heads gives 2 parts .* at most 2"),
        ("llama", {"num_key_value_heads": 6, "intermediate_size": 48}, 4, "intermediate_size gives 3 parts"),
        ("qwen3-moe", NARROW_EXPERTS, 3, "intermediate_size of experts gives 2 parts"),
    ],
)
def test_more_ranks_than_parts_are_refused(family, changes, world_size, said, tmp_path):
    folder, _ = make_folder(family, tmp_path, **changes)
    with pytest.raises(ConfigError, match=said):
        Shard(load_config(folder), 0, world_size)


def test_whole_experts_need_no_part_for_every_rank_nor_does_an_mlp_that_no_layer_has(tmp_path):
    folder, _ = make_folder("qwen3-moe", tmp_path / "narrow experts", **NARROW_EXPERTS)
    assert Shard(load_config(folder), 0, 3, has_whole_experts=True).experts == slice(0, 2)
    folder, _ = make_folder("qwen3-moe", tmp_path / "narrow", num_key_value_heads=6, intermediate_size=16)
    assert Shard(load_config(folder), 1, 2).config.experts.intermediate_size == 16


MUTANTS = [
    ("the o bias is added by every rank", "tensor if self.rank == 0 else torch.zeros_like(tensor)", "tensor"),
    ("no rank has the o bias", "tensor if self.rank == 0 else", ""),
    ("values are cut like queries", '"v_proj": kv', '"v_proj": slice(kv.start, kv.stop) if kv.start == 0 else q'),
    ("query heads are dealt round", "self.whole.num_heads // self.whole.num_kv_heads)", "1)"),
    ("the last linear layer's shares overlap", "tensor[self.vocabulary(self.rank)]", "tensor[self.vocabulary(0)]"),
    ("down is cut like up", "**dict.fromkeys(DOWNS, mlp)", "**dict.fromkeys(DOWNS, slice(0, _size(mlp)))"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[name for name, _, _ in MUTANTS])
def test_mutant_is_killed(name, old, new, tmp_path):
    folder, _ = make_folder("llama-biases", tmp_path)
    mutant = Mutant(name, "twophase_features.parallel.sharding", old, new)
    KillTable.record(mutant, lambda module: check_logits(folder, 2, module))
