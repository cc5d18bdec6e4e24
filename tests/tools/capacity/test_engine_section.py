"""From the plan to the engine: what `twophase plan --write` says is what the engine opened from it holds."""

import pytest
import torch
import yaml

from tests.model.tiny import make_folder
from tests.tools.capacity.plans import plan, text
from tests.tools.capacity.test_memory import as_on_a_gpu, bytes_held
from twophase import SamplingParams
from twophase.core.errors import ConfigError
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.step_memory import step_bytes
from twophase_tools.capacity.config import read_config
from twophase_tools.capacity.engine_section import engine_options, open_plan, write_engine
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
    """The file of a plan for a random model beside it, with the engine's section, and the plan."""
    make_folder(family, folder / "model", **(sizes or {"eos_token_id": None}))
    path = folder / "config.yaml"
    path.write_text(text(**SMALL | changes), encoding="utf-8")
    written = Plan(read_config(path))
    write_engine(path, written)
    return path, written


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


def test_the_command_writes_it_and_changes_no_other_line(twophase, tmp_path):
    make_folder("llama", tmp_path / "model")
    path = tmp_path / "config.yaml"
    before = "# mine\n" + text(**SMALL) + "# the end\n\n"
    path.write_text(before, encoding="utf-8")
    printed = twophase("plan", path)
    assert twophase("plan", path, "--write") == printed
    once = path.read_text(encoding="utf-8")
    assert once.startswith(before.rstrip())
    assert yaml.safe_load(once)["engine"]["num_kv_blocks"] == Plan(read_config(path)).memory.num_blocks
    assert twophase("plan", path, "--write") == printed
    assert path.read_text(encoding="utf-8") == once, "written twice, it is there once"
    path.write_text(once.replace("max_num_seqs: 8\n", "max_num_seqs: 4\n", 1) + "slo: {ttft_s: 9}\n", encoding="utf-8")
    assert twophase("plan", path, "--write")[0] == 0
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert (found["engine"]["max_num_seqs"], found["slo"]) == (4, {"ttft_s": 9})
    assert twophase("plan", "--example", "--write")[0] == 2


def test_options_take_the_place_of_the_plans(tmp_path):
    path, _ = written_plan(tmp_path)
    llm = open_plan(str(path), device="cpu", skip_tokenizer_init=True, num_kv_blocks=40, block_size=8)
    assert (llm.scheduler.cache.num_blocks, llm.scheduler.cache.block_size) == (40, 8)
    assert llm.scheduler.config.max_num_seqs == 8


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t[: t.index("engine:")], "has no section engine: `twophase plan --write"),
        (lambda t: t[: t.index("engine:")] + "engine: []\n", "has no section engine"),
        (lambda t: t[: t.index("engine:")] + "engine: {a: \n", "has no section engine"),
        (lambda t: t + "  seed: !!python/name:os.system x\n", "has no section engine"),
        (lambda t: t + "  num_kv_block: 3\n", "has an option that engines do not have: .*num_kv_block"),
        (lambda t: t + "  admission: late\n", "admission must be one of optimistic, reserve, estimate, got 'late'"),
        (lambda t: t + "  policy: fifo\n", "no policy is called 'fifo'; there are priority"),
    ],
)
def test_a_section_that_cannot_be_opened(spoil, said, tmp_path):
    path, _ = written_plan(tmp_path)
    path.write_text(spoil(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        open_plan(path)


def test_nothing_is_written_for_what_does_not_fit():
    with pytest.raises(ConfigError, match="no engine can be written for a plan in which no request fits"):
        engine_options(plan(model="llama-3-70b"))


def check_options(module) -> None:
    options = module.engine_options(plan(hardware="{memory: 24 GB, flops_per_s: 165e12, bytes_per_s: 1e12}"))
    assert (options["model"], options["max_num_seqs"]) == ("meta-llama/Meta-Llama-3-8B", 256)
    assert (
        options["num_kv_blocks"]
        == plan(hardware="{memory: 24 GB, flops_per_s: 1e12, bytes_per_s: 1}").memory.num_blocks
    )
