"""Windows in the engine, of all layers or of some: the tokens of a dense oracle, in a bounded number of blocks."""

from typing import Any, NamedTuple

import pytest
import torch

from tests.cache.integrity import check_integrity
from tests.engine.engines import prompt_of
from tests.model.tiny import WINDOW, make_folder
from twophase import LLM, SamplingParams, SpeculativeConfig
from twophase.attention.torch_backend import TorchBackend
from twophase.cache.manager import CacheManager
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase_features.windows.layer_groups import group_layers
from twophase_features.windows.sliding_window import SlidingWindow
from twophase_features.windows.windowed_cache import WindowedCache

OPTIONS = {
    "block_size": 4,
    "skip_tokenizer_init": True,
    "device": "cpu",
    "attention_backend": "torch",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 24,
}
NUM_TOKENS = 16
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((1, 9, 30, 57, 90))]  # up to 7 windows
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
ASKED = {"sliding_window": 14, "num_attention_sinks": 3}


class OwnCache(CacheManager):
    """Frees nothing before the end: the reference for freeing."""


class Case(NamedTuple):
    """A model, the options of its window (a model of layers of different kinds has its own), and the oracle's tokens."""

    folder: Any
    options: dict[str, int]
    expected: list[list[int]]

    def open(self, **options) -> LLM:
        return LLM(self.folder, **(OPTIONS | self.options | options))


def mask_of(length: int) -> torch.Tensor:
    """What to add to the scores, [1, 1, L, L]; written down from the definition."""
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    visible = (j <= i) & ((j > i - ASKED["sliding_window"]) | (j < ASKED["num_attention_sinks"]))
    return torch.zeros(length, length).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]


@torch.inference_mode()
def dense_greedy(oracle, prompt, is_masked: bool) -> list[int]:
    """transformers' model, all tokens anew at every step: no cache of theirs is trusted."""
    ids = list(prompt["prompt_token_ids"])
    for _ in range(NUM_TOKENS):
        mask = {"attention_mask": mask_of(len(ids))} if is_masked else {}
        ids.append(int(oracle(torch.tensor([ids]), use_cache=False, **mask).logits[0, -1].argmax()))
    return ids[-NUM_TOKENS:]


@pytest.fixture(
    scope="module", params=["llama", "qwen3", "gemma3", pytest.param("qwen3-mixed", marks=pytest.mark.full)]
)
def case(request, tmp_path_factory):
    folder, oracle = make_folder(request.param, tmp_path_factory.mktemp(request.param), eos_token_id=None)
    options = ASKED if request.param in ("llama", "qwen3") else {}
    return Case(folder, options, [dense_greedy(oracle, prompt, bool(options)) for prompt in PROMPTS])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("windows")
    return {name: make_folder(name, path / name, eos_token_id=None)[0] for name in ("llama", "mistral", "gemma3")}


def generate(llm: LLM, prompts=PROMPTS, params=PARAMS) -> list[list[int]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.scheduler.cache.stats().num_in_use == 0, "blocks leaked"
    check_integrity(llm.scheduler.cache)
    return [list(output.outputs[0].token_ids) for output in outputs]


def poisoned(llm: LLM) -> LLM:
    """Every block that is free when a step begins holds NaN, unless the prefix cache could still find it."""
    schedule = llm.scheduler.schedule

    def spoil(*args):
        blank = llm.scheduler.cache._pool._blank
        for tensor in llm.kv_cache.storage:
            tensor[:, blank] = float("nan")
        return schedule(*args)

    llm.scheduler.schedule = spoil
    return llm


def num_blocks_of(llm: LLM, num_tokens: int) -> int:
    """Blocks that one sequence of this length needs, computed in small chunks."""
    cache = llm.scheduler.cache
    return sum(cache.sees_all) * -(-num_tokens // 4) + cache.sees_all.count(False) * cache.window.max_blocks(4)


def test_equal_to_transformers_alone_batched_and_in_chunks(case):
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": 200}
    for options in ({}, {"max_num_batched_tokens": 8}, whole):
        assert generate(case.open(**options)) == case.expected, options
    llm = case.open()
    assert [generate(llm, [prompt])[0] for prompt in PROMPTS] == case.expected
    if case.options:
        assert generate(LLM(case.folder, **OPTIONS)) != case.expected, "the window was to make a difference"
        keeping = case.open(cache_factory=OwnCache)
        assert not isinstance(keeping.scheduler.cache, WindowedCache)
        assert generate(keeping) == case.expected


def test_freed_blocks_are_never_read(case):
    assert generate(poisoned(case.open(enable_prefix_caching=False))) == case.expected


@pytest.mark.parametrize(("caching", "options"), [(False, {}), (True, {}), (True, {"preemption_mode": "swap"})])
def test_in_a_pool_of_one_sequence(case, options, caching):
    """Prompts many times longer than the pool, and all of them at once: they take turns, and nothing changes."""
    num_blocks = num_blocks_of(case.open(), 90 + NUM_TOKENS - 1)
    llm = case.open(num_kv_blocks=num_blocks, enable_prefix_caching=caching, **options)
    assert generate(llm) == case.expected
    assert generate(llm) == case.expected, "with whatever the prefix cache still has"
    with pytest.raises(InvalidRequestError, match=f"may need {num_blocks} KV blocks"):
        case.open(num_kv_blocks=num_blocks - 1).generate(PROMPTS[-1], PARAMS, use_tqdm=False)


def test_the_pool_is_no_larger_than_windows_can_use_and_its_blocks_have_the_size_of_a_group(folders):
    asked = LLM(folders["llama"], **OPTIONS, **ASKED)
    assert asked.kv_cache.num_blocks == 8 * SlidingWindow(14, 3).max_blocks(4) + 24 // 4
    assert LLM(folders["llama"], **OPTIONS).kv_cache.num_blocks == 8 * 256 // 4
    llm = LLM(folders["gemma3"], **OPTIONS)
    groups = group_layers(llm.model_config.sees_all)
    assert (groups.size, groups.sees_all) == (2, (True, False, False))
    assert llm.kv_cache.spec.bytes_per_token == 2 * groups.size * 2 * 8 * 4, "K and V, layers, heads, head_dim, fp32"
    num_bytes = sum(tensor.nbytes for tensor in llm.kv_cache.storage)
    assert llm.kv_cache.num_blocks * llm.kv_cache.spec.bytes_per_block == num_bytes
    sliding = 8 * SlidingWindow(WINDOW).max_blocks(4) + 24 // 4  # of 8 sequences, and a step's tokens
    assert llm.kv_cache.num_blocks == 8 * 256 // 4 + 2 * sliding


@pytest.mark.parametrize(
    ("options", "window"),
    [
        ({}, SlidingWindow(12)),
        ({"sliding_window": 5, "num_attention_sinks": 2}, SlidingWindow(5, 2)),
        ({"num_attention_sinks": 2}, SlidingWindow(12, 2)),
    ],
)
def test_a_model_with_a_window_of_its_own_may_get_a_narrower_one_and_sinks(options, window, folders):
    assert LLM(folders["mistral"], **OPTIONS, **options).scheduler.cache.window == window


def draft_model(folder):
    return SpeculativeConfig(method="draft_model", model=str(folder))


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("llama", {"num_attention_sinks": 4}, "num_attention_sinks=4 and no window"),
        ("mistral", {"sliding_window": 13}, "own window of 12 keys and not widen it"),
        ("gemma3", {"cache_factory": lambda *args: CacheManager(*args)}, "makes a cache for layers of one kind"),
        ("mistral", {"draft": "mistral"}, "sliding window may have freed"),
        ("llama", {"draft": "gemma3"}, r"draft model .* has layers of different kinds"),
    ],
)
def test_what_does_not_go_together_is_refused(family, options, message, folders):
    options = dict(options)
    if "draft" in options:
        options["speculative_config"] = draft_model(folders[options.pop("draft")])
    with pytest.raises(ConfigError, match=message):
        LLM(folders[family], **OPTIONS, num_kv_blocks=64, **options)


def test_a_backend_that_is_made_gets_the_window(folders):
    made = []
    own = OPTIONS | {"attention_backend": lambda spec: made.append(spec) or TorchBackend(spec, 4)}
    assert LLM(folders["llama"], **own, sliding_window=8).model.backend.spec.window == 8
    made.clear()
    mixed = LLM(folders["gemma3"], **own)
    assert [spec.window for spec in made] == [None, WINDOW]
    assert [backend.spec.window for backend in mixed.model.backend.of_group] == [None, WINDOW, WINDOW]
