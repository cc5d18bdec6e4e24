"""From the plan to the engine: what `twophase plan --write` says is what the engine opened from it holds."""

from types import ModuleType

import pytest
import torch
import yaml

from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from tests.tools.capacity.plans import text
from tests.tools.capacity.test_memory import as_on_a_gpu, tensors_in
from twophase import SamplingParams
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.step_memory import step_bytes
from twophase_tools.capacity import plan_file
from twophase_tools.capacity.config import EXAMPLE, parse_config, read_config
from twophase_tools.capacity.engine_section import engine_options, write_engine
from twophase_tools.capacity.plan import Plan
from twophase_tools.capacity.plan_file import open_plan

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
    "a window and sinks": ("llama-wide-heads", {"eviction": "{window: 12, sinks: 2}"}),
}


def written_plan(folder, family="llama-wide-heads", **changes):
    """The file of a plan for a random model beside it, with the engine's section, and the plan."""
    make_folder(family, folder / "model", eos_token_id=None)
    path = folder / "config.yaml"
    path.write_text(text(**SMALL | changes), encoding="utf-8")
    plan = Plan(read_config(path))
    write_engine(path, plan)
    return path, plan


@pytest.mark.parametrize("case", CASES)
def test_the_engine_holds_what_the_plan_says(case, tmp_path, monkeypatch):
    monkeypatch.setattr("twophase.model.linear.can_pack", lambda dtype: False)  # packed, weights tell no size
    family, changes = CASES[case]
    path, plan = written_plan(tmp_path, family, **changes)
    llm = open_plan(path, device="cpu", skip_tokenizer_init=True)
    table, config, limits = plan.memory, plan.config, llm.scheduler.config
    assert llm.model_dir == tmp_path / "model"
    assert llm.scheduler.cache.num_blocks == llm.kv_cache.num_blocks == table.num_blocks > 16
    kv_cache_bytes = sum(each.nbytes for each in llm.kv_cache.storage)
    assert kv_cache_bytes == table.num_blocks * table.block_bytes
    held = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors_in(llm.model.weights)
    }
    assert sum(held.values()) == table.weight_bytes
    assert sum(held.values()) + kv_cache_bytes < 0.9 * 6e6
    if config.chunk_size is None:  # the engine does not know its policy's steps
        assert step_bytes(llm.model_config, limits, torch.float32) == table.workspace_bytes
    assert (limits.max_num_seqs, limits.max_model_len, limits.max_num_batched_tokens) == (8, 64, 32)
    assert llm.config.policy == (None if config.chunk_size is None else ChunkedPrefillPolicy(16))
    window = getattr(llm.scheduler.cache, "window", None)
    expected = None if config.eviction is None else (config.eviction.window, config.eviction.num_sinks)
    assert (None if window is None else (window.window, window.num_sinks)) == expected


def test_the_engine_holds_quantised_weights_as_the_plan_says(tmp_path, monkeypatch):
    """With the layers of a GPU: a CPU has copies besides, or makes them plain (see `twophase doctor`)."""
    monkeypatch.setattr("twophase_features.quantization.loader.make_quantized_linear", as_on_a_gpu)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 16}
    make_folder("llama", tmp_path / "model", **sizes)
    path = tmp_path / "config.yaml"
    path.write_text(text(**SMALL | {"quantization": "int4"}), encoding="utf-8")
    plan = Plan(read_config(path))
    write_engine(path, plan)
    llm = open_plan(path, device="cpu", skip_tokenizer_init=True)
    assert llm.config.quantization == "int4"
    held = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors_in(llm.model.weights)
    }
    assert sum(held.values()) == plan.memory.weight_bytes


def most_at_once(path, num_requests):
    """Requests as long as the context that run at once, when none may be preempted."""
    llm = open_plan(path, device="cpu", skip_tokenizer_init=True, admission="reserve", enable_prefix_caching=False)
    prompts = [{"prompt_token_ids": [7, 8, index]} for index in range(num_requests)]
    llm.generate(prompts, SamplingParams(max_tokens=61, temperature=0, ignore_eos=True), use_tqdm=False)
    assert llm.engine.stats().num_preemptions == 0
    return max(step.num_running for step in llm.engine.trace)


def test_as_many_requests_run_at_once_as_the_plan_says(tmp_path):
    path, plan = written_plan(
        tmp_path, max_num_seqs=16, hardware="{memory: 2 MB, flops_per_s: 1e12, bytes_per_s: 1e11}"
    )
    assert 1 < plan.at_limit.num_requests < 14
    assert most_at_once(path, plan.at_limit.num_requests + 3) == plan.at_limit.num_requests


def test_places_are_the_limit_where_memory_is_not(tmp_path):
    path, plan = written_plan(tmp_path, max_num_seqs=3)
    assert plan.at_limit.num_requests > 3
    assert most_at_once(path, 6) == plan.max_requests == 3


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
    path.write_text(once.replace("max_num_seqs: 8\n", "max_num_seqs: 4\n", 1), encoding="utf-8")
    assert twophase("plan", path, "--write")[0] == 0
    assert plan_file.read_plan(path).config.max_num_seqs == 4
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["config.yaml"]
    assert twophase("plan", "--example", "--write")[0] == 2


def test_options_and_model_can_be_put_in_place_of_the_plans(tmp_path):
    path, _ = written_plan(tmp_path)
    other, _ = make_folder("qwen2", tmp_path / "other", eos_token_id=None)
    llm = open_plan(str(path), model=other, device="cpu", skip_tokenizer_init=True, num_kv_blocks=40, block_size=8)
    assert llm.model_dir == other
    assert (llm.scheduler.cache.num_blocks, llm.scheduler.cache.block_size) == (40, 8)
    assert llm.scheduler.config.max_num_seqs == 8


@pytest.mark.parametrize("whole", [True, False])
def test_experts_are_shared_out_as_planned(whole, tmp_path):
    hardware = "{memory: 6 MB, flops_per_s: 1e12, bytes_per_s: 1e11, link_bytes_per_s: 1e10}"
    options = {"tensor_parallel_size": 2, "hardware": hardware, "enable_expert_parallel": str(whole).lower()}
    path, _ = written_plan(tmp_path, "qwen3-moe", **options)
    planned = plan_file.read_plan(path).config
    assert (planned.tensor_parallel_size, planned.enable_expert_parallel) == (2, whole)


def test_a_model_of_mixed_layers_has_no_plan_and_may_take_the_place_of_one_that_has(tmp_path):
    path, _ = written_plan(tmp_path)
    mixed, _ = make_folder("gemma3", tmp_path / "mixed", eos_token_id=None)
    with pytest.raises(
        ConfigError, match=r"config\.yaml:1: model .*layers that see all keys and layers that see a win"
    ):
        parse_config(text(**SMALL | {"model": "mixed"}), folder=tmp_path)
    llm = open_plan(path, model=mixed, device="cpu", skip_tokenizer_init=True, admission="reserve")
    assert llm.scheduler.cache.num_groups > 1
    (output,) = llm.generate([[7, 8, 9]], SamplingParams(max_tokens=40, temperature=0, ignore_eos=True), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 40


def test_the_example_names_its_model_as_the_engine_does(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    write_engine(path, Plan(read_config(path)))
    planned = plan_file.read_plan(path)
    assert planned.model == "meta-llama/Meta-Llama-3-8B"
    assert isinstance(planned.config, EngineConfig)
    assert planned.config.dtype == "bfloat16"


def test_nothing_is_written_for_what_does_not_fit(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text(model="llama-3-70b"), encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"no request fits: the pool has 0 blocks, and one of mean length takes 79"):
        write_engine(path, Plan(read_config(path)))
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    path, plan = written_plan(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *args: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be written: Permission denied"):
        write_engine(path, plan)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["config.yaml"]


MISTAKES = [
    (lambda t: t[: t.index("engine:")], "has no section engine: `twophase plan --write"),
    (lambda t: t.replace("max_model_len: 64", "max_model_len: 65", 1), "not the one that its section engine was written for"),
    (lambda t: t.replace("  plan_sha256", "  plan_sha"), "unknown option engine.'plan_sha'"),
    (lambda t: "\n".join(line for line in t.splitlines() if "sha256" not in line), "not the one that its section"),
    (lambda t: t + "  num_kv_block: 3\n", "unknown option engine.'num_kv_block' in .*did you mean num_kv_blocks?"),
    (lambda t: t + "  qqq: 3\n", "known are model, device, dtype"),
    (lambda t: t + "  drafter: 3\n", "unknown option engine.'drafter'"),
    (lambda t: t + "  admission: late\n", "admission must be one of optimistic, reserve, estimate, got 'late'"),
    (lambda t: t + "  block_size: 8\n", "engine.block_size stands in .* more than once"),
    (lambda t: t + "  policy: fifo\n", "no policy is called 'fifo'; there are priority"),
    (lambda t: t + "dtype: float32\n", r"config.yaml:\d+: engine must be the last key"),
    (lambda t: t[: t.index("engine:")] + "engine: []\n", "must be lines of `option: value`, got \\[\\]"),
    (lambda t: t[: t.index("engine:")] + "engine: {a: \n", "is no YAML"),
    (lambda t: t.replace("  model: model", "  model: 5"), "must be a model's name or folder, got 5"),
    (lambda t: t + "  seed: !!python/name:os.system x\n", "is no YAML"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "said"), MISTAKES)
def test_a_section_that_cannot_be_opened(spoil, said, tmp_path):
    path, _ = written_plan(tmp_path)
    path.write_text(spoil(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        open_plan(path)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read(content, tmp_path):
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config.yaml cannot be read"):
        open_plan(path)


def check_file(module: ModuleType) -> None:
    plan = "a: 1 \n# engine: no\n\n"
    once = module.with_section(plan, {"model": "m", "max_num_seqs": 3})
    assert once.startswith("a: 1 \n# engine: no\n")
    above, section = module.split(once)
    assert module.digest_of(above) == module.digest_of(plan) == yaml.safe_load(section)["engine"]["plan_sha256"]
    assert module.with_section(once, {"model": "m", "max_num_seqs": 3}) == once
    assert module.digest_of("a: 2") != module.digest_of("a: 1")
    assert module.digest_of(" a: 1") != module.digest_of("a: 1")
    assert module.split(plan) == (plan, "")
    with pytest.raises(ConfigError, match=":7: engine must be the last key"):
        module.split("a: 1\nengine:\n  b: 2\n# a comment\n  c: 3\n\nd: 4\n")


def check_options(module: ModuleType) -> None:
    plan = Plan(parse_config(text(hardware="{memory: 24 GB, flops_per_s: 165e12, bytes_per_s: 1e12}")))
    options = module.engine_options(plan)
    assert options == engine_options(plan)
    assert options["num_kv_blocks"] == plan.memory.num_blocks
    assert options["max_num_seqs"] == plan.config.max_num_seqs != plan.max_requests


def test_the_file_by_hand():
    check_file(plan_file)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("comments are sections", r'"^engine[ \t]*:"', r'"engine[ \t]*:"'),
        ("other keys may follow", "if other is not None:", "if False:"),
        ("the digest is of nothing", '"\\n".join(lines).encode()', 'b""'),
        ("indents do not count", "[line.rstrip() for line", "[line.strip() for line"),
        ("blank lines count", "plan.rstrip().splitlines()", "plan.splitlines()"),
        ("the old section stays", "    plan, _ = split(text, name)\n    section =", "    plan = text\n    section ="),
        ("the note is the plan's", r"(\n# Written by `twophase plan --write`[^\n]*)?\s*\Z", r"\s*\Z"),
    ],
)
def test_mutants_of_the_file_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_tools.capacity.plan_file", old, new), check_file)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("places of memory", '"max_num_seqs": config.max_num_seqs', '"max_num_seqs": plan.max_requests'),
        ("one block less", '"num_kv_blocks": table.num_blocks,', '"num_kv_blocks": table.num_blocks - 1,'),
    ],
)
def test_mutants_of_the_options_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_tools.capacity.engine_section", old, new), check_options)
