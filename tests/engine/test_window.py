"""Sliding windows and sinks in the engine: the same tokens as a dense oracle with that mask, in a bounded number of blocks."""

import pytest
import torch

from tests.cache.integrity import check_integrity
from tests.engine.engines import prompt_of
from tests.model.tiny import make_folder
from twophase import LLM, SamplingParams
from twophase.attention.torch_backend import TorchBackend
from twophase.cache.manager import CacheManager
from twophase.core.errors import ConfigError
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
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((1, 9, 30, 57, 90))]
WINDOW, NUM_SINKS, NUM_TOKENS = 14, 3, 24
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
MOST_BLOCKS = SlidingWindow(WINDOW, NUM_SINKS).max_blocks(4)


class OwnCache(CacheManager):
    """Frees nothing before the end: the reference for freeing."""


def mask_of(length: int, window: int, num_sinks: int) -> torch.Tensor:
    """What to add to the scores, [1, 1, L, L]; written down from the definition."""
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    visible = (j <= i) & ((j > i - window) | (j < num_sinks))
    return torch.zeros(length, length).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]


@torch.inference_mode()
def dense_greedy(oracle, prompt) -> list[int]:
    """transformers' model under an explicit mask, all tokens anew at every step."""
    ids = list(prompt["prompt_token_ids"])
    for _ in range(NUM_TOKENS):
        mask = mask_of(len(ids), WINDOW, NUM_SINKS)
        ids.append(int(oracle(torch.tensor([ids]), attention_mask=mask).logits[0, -1].argmax()))
    return ids[-NUM_TOKENS:]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def case(request, tmp_path_factory):
    folder, oracle = make_folder(request.param, tmp_path_factory.mktemp(request.param), eos_token_id=None)
    return folder, [dense_greedy(oracle, prompt) for prompt in PROMPTS]


def windowed(folder, **options) -> LLM:
    return LLM(folder, **(OPTIONS | {"sliding_window": WINDOW, "num_attention_sinks": NUM_SINKS} | options))


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


def test_equal_to_a_dense_oracle_with_the_same_mask(case):
    folder, expected = case
    assert generate(windowed(folder)) == expected
    assert generate(windowed(folder, max_num_batched_tokens=8)) == expected
    assert generate(LLM(folder, **OPTIONS)) != expected, "the window was to make a difference"


def test_freed_blocks_are_never_read(case):
    folder, expected = case
    assert generate(poisoned(windowed(folder, enable_prefix_caching=False))) == expected


def test_equal_to_the_same_without_freeing(case):
    folder, expected = case
    keeping = windowed(folder, cache_factory=OwnCache)
    assert not isinstance(keeping.scheduler.cache, WindowedCache)
    assert generate(keeping) == expected
    most, bounded = (max(step.blocks_in_use for step in llm.engine.trace) for llm in (keeping, windowed_run(folder)))
    assert bounded <= len(PROMPTS) * MOST_BLOCKS + 24 // 4 < most


def windowed_run(folder) -> LLM:
    llm = windowed(folder)
    generate(llm)
    return llm


@pytest.mark.parametrize(
    ("caching", "options"),
    [(True, {}), (False, {}), (True, {"preemption_mode": "swap"})],
    ids=["caching", "no caching", "offloading"],
)
def test_in_a_pool_of_one_sequence(case, options, caching):
    """Prompts many times longer than the pool, and all of them at once: they take turns, and nothing changes."""
    folder, expected = case
    llm = windowed(folder, num_kv_blocks=MOST_BLOCKS + 2, enable_prefix_caching=caching, **options)
    assert llm.kv_cache.num_blocks * 4 < 57
    assert generate(llm) == expected
    assert generate(llm) == expected, "with whatever the prefix cache still has"


def test_a_hit_beyond_the_window_changes_nothing(case):
    folder, expected = case
    llm = windowed(folder, num_kv_blocks=200)
    generate(llm)
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
    assert [output.metrics.num_cached_tokens for output in outputs] == [0, 8, 28, 56, 88]


def test_a_models_own_window_frees_blocks_too(tmp_path):
    folder, oracle = make_folder("mistral", tmp_path, eos_token_id=None)
    llm = LLM(folder, **OPTIONS, num_kv_blocks=16)
    assert llm.scheduler.cache.window == SlidingWindow(12)
    prompt = PROMPTS[-1]
    ids = torch.tensor([prompt["prompt_token_ids"]])
    new = oracle.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NUM_TOKENS)
    assert generate(llm, [prompt]) == [new[0, ids.shape[1] :].tolist()]
    assert max(step.blocks_in_use for step in llm.engine.trace if step.num_decodes) <= SlidingWindow(12).max_blocks(4)


def test_sinks_without_a_window_are_refused(case):
    with pytest.raises(ConfigError, match="num_attention_sinks=4 and no window"):
        LLM(case[0], **OPTIONS, num_attention_sinks=4)


def test_a_model_with_a_window_of_its_own_may_get_a_narrower_one_and_sinks(tmp_path):
    folder, _ = make_folder("mistral", tmp_path, eos_token_id=None)
    assert LLM(folder, **OPTIONS, sliding_window=5, num_attention_sinks=2).scheduler.cache.window == SlidingWindow(5, 2)
    assert LLM(folder, **OPTIONS, num_attention_sinks=2).scheduler.cache.window == SlidingWindow(12, 2)
    with pytest.raises(ConfigError, match="own window of 12 keys and not widen it"):
        LLM(folder, **OPTIONS, sliding_window=13)


def test_a_ready_made_backend_keeps_its_own_view(case):
    folder, _ = case
    spec = LLM(folder, **OPTIONS).model.backend.spec
    ready = OPTIONS | {"attention_backend": TorchBackend(spec, 4)}
    assert not isinstance(LLM(folder, **ready).scheduler.cache, WindowedCache)
    with pytest.raises(ConfigError, match=r"sliding_window .* and attention_backend.*was made without the window"):
        LLM(folder, **ready, sliding_window=8)
    made = LLM(folder, **(OPTIONS | {"attention_backend": lambda spec: TorchBackend(spec, 4)}), sliding_window=8)
    assert made.model.backend.spec.window == 8


def test_no_larger_pool_than_windows_can_use(case):
    llm = windowed(case[0])
    assert llm.kv_cache.num_blocks == 8 * MOST_BLOCKS + 24 // 4
    assert LLM(case[0], **OPTIONS).kv_cache.num_blocks == 8 * 256 // 4


@pytest.mark.full
def test_smollm2_writes_600_tokens_in_bounded_memory(smollm2_folder):
    options = {"device": "cpu", "attention_backend": "torch", "max_model_len": 700}
    llm = LLM(smollm2_folder, sliding_window=128, num_attention_sinks=4, max_num_seqs=1, **options)
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=600, ignore_eos=True)
    (output,) = llm.generate("Once upon a time", params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 600
    assert max(step.blocks_in_use for step in llm.engine.trace) <= SlidingWindow(128, 4).max_blocks(16)
