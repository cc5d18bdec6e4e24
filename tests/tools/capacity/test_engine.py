"""From the plan to the engine: what the plan says is what the engine opened from its file holds."""

import pytest
import torch

from tests.model.tiny import make_folder
from tests.tools.capacity.plans import plan, text
from tests.tools.capacity.test_memory import as_on_a_gpu, bytes_held
from twophase import SamplingParams
from twophase.core.errors import ConfigError
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.step_memory import step_bytes
from twophase_tools.capacity.config import read_config
from twophase_tools.capacity.engine import engine_config, open_plan
from twophase_tools.capacity.plan import Plan

SMALL = {
    "model": "model",
    "hardware": "{memory: 6 MB, flops_per_s: 1e12, bytes_per_s: 1e11}",
    "dtype": "float32",
    "block_size": 4,
    "max_model_len": 64,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "workload": "{rate: 1, prompt_tokens: 9, output_tokens: 9}",
}
CASES = {
    "plain": ("llama-wide-heads", {}),
    "chunks": ("llama-wide-heads", {"chunk_size": 16}),
    "int8": ("llama-wide-heads", {"kv_cache_dtype": "int8", "block_size": 8}),
    "the model's own window": ("mistral", {}),
    "experts": ("qwen3-moe", {}),
}


def written_plan(folder, family="llama-wide-heads", sizes=None, **changes):
    """The file of a plan for a random model beside it, and the plan."""
    make_folder(family, folder / "model", **(sizes or {"eos_token_id": None}))
    path = folder / "config.yaml"
    path.write_text(text(**SMALL | changes), encoding="utf-8")
    return path, Plan(read_config(path))


@pytest.mark.parametrize("case", CASES)
def test_the_engine_holds_what_the_plan_says(case, tmp_path, monkeypatch):
    monkeypatch.setattr("twophase.model.linear.can_pack", lambda dtype: False)  # packed, weights tell no size
    family, changes = CASES[case]
    path, written = written_plan(tmp_path, family, **changes)
    llm = open_plan(path, device="cpu", skip_tokenizer_init=True)
    table, config, limits = written.memory, written.config, llm.scheduler.config
    assert llm.model_dir == tmp_path / "model"
    assert llm.scheduler.cache.num_blocks == llm.kv_cache.num_blocks == table.num_blocks > 16
    kv_cache_bytes = sum(each.nbytes for each in llm.kv_cache.storage)
    assert kv_cache_bytes == table.num_blocks * table.block_bytes
    assert bytes_held(llm.model.weights) == table.weight_bytes
    assert table.weight_bytes + kv_cache_bytes < 0.9 * 6e6
    if config.chunk_size is None:  # the engine does not know its policy's steps
        assert step_bytes(llm.model_config, limits, torch.float32) == table.workspace_bytes
    assert (limits.max_num_seqs, limits.max_model_len, limits.max_num_batched_tokens) == (8, 64, 32)
    assert llm.config.policy == (None if config.chunk_size is None else ChunkedPrefillPolicy(16))


def test_the_engine_holds_quantised_weights_as_the_plan_says(tmp_path, monkeypatch):
    """With the layers of a GPU: a CPU has copies besides, or makes them plain."""
    monkeypatch.setattr("twophase_features.quantization.loader.make_quantized_linear", as_on_a_gpu)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 16}
    path, written = written_plan(tmp_path, "llama", sizes, quantization="int4")
    llm = open_plan(path, device="cpu", skip_tokenizer_init=True)
    assert llm.config.quantization == "int4"
    assert bytes_held(llm.model.weights) == written.memory.weight_bytes


def most_at_once(path, num_requests):
    """Requests as long as the context that run at once, when none may be preempted."""
    llm = open_plan(path, device="cpu", skip_tokenizer_init=True, admission="reserve", enable_prefix_caching=False)
    prompts = [{"prompt_token_ids": [7, 8, index]} for index in range(num_requests)]
    llm.generate(prompts, SamplingParams(max_tokens=61, temperature=0, ignore_eos=True), use_tqdm=False)
    assert llm.engine.stats().num_preemptions == 0
    return max(step.num_running for step in llm.engine.trace)


def test_as_many_requests_run_at_once_as_the_plan_says(tmp_path):
    hardware = "{memory: 2 MB, flops_per_s: 1e12, bytes_per_s: 1e11}"
    path, written = written_plan(tmp_path, max_num_seqs=16, hardware=hardware)
    assert 1 < written.at_limit.num_requests < 14
    assert most_at_once(path, written.at_limit.num_requests + 3) == written.at_limit.num_requests


def test_places_are_the_limit_where_memory_is_not(tmp_path):
    path, written = written_plan(tmp_path, max_num_seqs=3)
    assert written.at_limit.num_requests > 3
    assert most_at_once(path, 6) == written.max_requests == 3


def test_options_take_the_place_of_the_plans(tmp_path):
    path, _ = written_plan(tmp_path)
    llm = open_plan(str(path), device="cpu", skip_tokenizer_init=True, num_kv_blocks=40, block_size=8)
    assert (llm.scheduler.cache.num_blocks, llm.scheduler.cache.block_size) == (40, 8)
    assert llm.scheduler.config.max_num_seqs == 8


def test_nothing_is_opened_for_what_does_not_fit():
    with pytest.raises(ConfigError, match="no engine can be opened for a plan in which no request fits"):
        engine_config(plan(model="llama-3-70b"))


def check_options(module) -> None:
    small = plan(hardware="{memory: 24 GB, flops_per_s: 165e12, bytes_per_s: 1e12}")
    options = module.engine_config(small)
    assert (options.max_num_seqs, options.num_kv_blocks) == (256, small.memory.num_blocks)
