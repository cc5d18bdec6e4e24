"""Layers of different kinds in the engine: the tokens of transformers, and a window's worth of blocks in sliding layers."""

import pytest
import torch

from tests.engine.engines import prompt_of
from tests.engine.test_window import OPTIONS, poisoned
from tests.engine.test_window import generate as generate_all
from tests.model.tiny import WINDOW, make_folder
from twophase import LLM, SamplingParams, SpeculativeConfig
from twophase.attention.torch_backend import TorchBackend
from twophase.cache.manager import CacheManager
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase_features.windows.layer_groups import group_layers
from twophase_features.windows.sliding_window import SlidingWindow
from twophase_features.windows.windowed_cache import WindowedCache

NUM_TOKENS = 14
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((1, 9, 30, 57, 90))]  # up to 7 windows
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
MOST = SlidingWindow(WINDOW).max_blocks(4)  # of a sequence in a group of sliding layers


@torch.inference_mode()
def greedy(oracle, prompt) -> list[int]:
    """All tokens anew at every step: no cache of theirs is trusted."""
    ids = list(prompt["prompt_token_ids"])
    for _ in range(NUM_TOKENS):
        ids.append(int(oracle(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[-NUM_TOKENS:]


@pytest.fixture(scope="module", params=["gemma3", pytest.param("qwen3-mixed", marks=pytest.mark.full)])
def case(request, tmp_path_factory):
    folder, oracle = make_folder(request.param, tmp_path_factory.mktemp(request.param), eos_token_id=None)
    return folder, [greedy(oracle, prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return make_folder("gemma3", tmp_path_factory.mktemp("gemma"), eos_token_id=None)[0]


def opened(folder, **options) -> LLM:
    return LLM(folder, **(OPTIONS | options))


def generate(llm: LLM, prompts=PROMPTS, params=PARAMS) -> list[list[int]]:
    return generate_all(llm, prompts, params)


def num_blocks_of(llm: LLM, num_tokens: int) -> int:
    """Blocks that one sequence of this length needs, computed in small chunks."""
    sees_all = llm.scheduler.cache.sees_all
    return sum(sees_all) * -(-num_tokens // 4) + sees_all.count(False) * MOST


def test_equal_to_transformers_alone_batched_and_in_chunks(case):
    folder, expected = case
    for options in (
        {},
        {"max_num_batched_tokens": 8},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 200},
    ):
        assert generate(opened(folder, **options)) == expected, options
    llm = opened(folder)
    assert [generate(llm, [prompt])[0] for prompt in PROMPTS] == expected


def test_freed_blocks_are_never_read(case):
    folder, expected = case
    assert generate(poisoned(opened(folder, enable_prefix_caching=False))) == expected


@pytest.mark.parametrize(("caching", "options"), [(False, {}), (True, {"preemption_mode": "swap"})])
def test_in_a_pool_of_one_sequence(case, options, caching):
    folder, expected = case
    num_blocks = num_blocks_of(opened(folder), 90 + NUM_TOKENS - 1)
    llm = opened(folder, num_kv_blocks=num_blocks, enable_prefix_caching=caching, **options)
    assert generate(llm) == expected
    assert generate(llm) == expected, "with whatever the prefix cache still has"
    with pytest.raises(InvalidRequestError, match=rf"may need {num_blocks} KV blocks .* groups of layers"):
        opened(folder, num_kv_blocks=num_blocks - 1).generate(PROMPTS[-1], PARAMS, use_tqdm=False)


def test_a_hit_beyond_the_window_changes_nothing(case):
    folder, expected = case
    llm = opened(folder, num_kv_blocks=1000)
    generate(llm)
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
    assert [output.metrics.num_cached_tokens for output in outputs] == [0, 8, 28, 56, 88]


def test_the_triton_backend(case):
    folder, expected = case
    device = "cuda" if torch.cuda.is_available() else "cpu"  # kernels are compiled where there is a GPU
    llm = opened(folder, device=device, attention_backend="triton", max_num_batched_tokens=48)
    assert {backend.name for backend in llm.model.backend.of_group} == {"triton"}
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    assert generate(llm, PROMPTS[1:3], params) == [tokens[:3] for tokens in expected[1:3]]


def blocks_by_kind(llm: LLM) -> list[dict[str, int]]:
    """Blocks in use of each kind of layer after every step, from now on."""
    update, counts = llm.scheduler.update, []

    def counting(*args):
        updates = update(*args)
        cache = llm.scheduler.cache
        is_windowed = isinstance(cache, WindowedCache)
        counts.append(cache.num_in_use_by_kind() if is_windowed else {"full": cache.stats().num_in_use, "sliding": 0})
        return updates

    llm.scheduler.update = counting
    return counts


def test_sliding_layers_keep_a_window_and_the_others_everything(case):
    """One sequence, token by token to nine windows: two numbers per step, by hand."""
    folder, _ = case
    llm = opened(folder, enable_prefix_caching=False)
    counts = blocks_by_kind(llm)
    llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=9 * WINDOW, ignore_eos=True), use_tqdm=False)
    sees_all = llm.scheduler.cache.sees_all
    num_full, num_sliding = sum(sees_all), sees_all.count(False)
    assert num_full >= 1
    assert num_sliding >= 2
    for num_tokens, count in enumerate(counts[:-1], 1):
        kept = [b for b in range(-(-num_tokens // 4)) if 4 * b + 3 > num_tokens - WINDOW]
        assert count == {"full": num_full * -(-num_tokens // 4), "sliding": num_sliding * len(kept)}, num_tokens
    assert max(count["sliding"] for count in counts) <= num_sliding * MOST
    assert counts[-1] == {"full": 0, "sliding": 0}
    assert max(step.blocks_in_use for step in llm.engine.trace) == max(sum(count.values()) for count in counts[:-1])


def test_long_prompts_free_as_they_go(case):
    folder, expected = case
    llm = opened(folder, max_num_batched_tokens=8)
    counts = blocks_by_kind(llm)
    assert generate(llm, PROMPTS[-1:]) == expected[-1:]
    sees_all = llm.scheduler.cache.sees_all
    assert max(count["sliding"] for count in counts) <= sees_all.count(False) * MOST
    most = 90 + NUM_TOKENS - 2  # before the step after which nothing is in use
    assert max(count["full"] for count in counts) == sum(sees_all) * -(-most // 4)


def test_of_one_kind_the_count_has_one_kind(tmp_path):
    for family, kind in (("llama", "full"), ("mistral", "sliding")):
        folder, _ = make_folder(family, tmp_path / family, eos_token_id=None)
        llm = opened(folder)
        counts = blocks_by_kind(llm)
        generate(llm, PROMPTS[2:3])
        assert all(count[other] == 0 for count in counts for other in {"full", "sliding"} - {kind})
        assert max(count[kind] for count in counts) == max(step.blocks_in_use for step in llm.engine.trace)


def test_blocks_and_pool_have_the_size_of_a_group(gemma):
    llm = opened(gemma)
    groups = group_layers(llm.model_config.sees_all)
    assert (groups.size, groups.sees_all) == (2, (True, False, False))
    spec = llm.kv_cache.spec
    assert spec.bytes_per_token == 2 * groups.size * 2 * 8 * 4, "K and V, layers, heads, head_dim, fp32"
    assert llm.kv_cache.num_blocks * llm.kv_cache.spec.bytes_per_block == sum(
        tensor.nbytes for tensor in llm.kv_cache.storage
    )
    sliding = 8 * MOST + 24 // 4  # of 8 sequences, and a step's tokens
    assert llm.kv_cache.num_blocks == 8 * 256 // 4 + 2 * sliding


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sliding_window": 5}, r"sliding_window .* and a model with layers .* do not go together"),
        ({"num_attention_sinks": 2}, r"sliding_window .* and a model with layers .* do not go together"),
        ({"cache_factory": lambda *args: CacheManager(*args)}, r"cache_factory makes a cache for layers of one kind"),
    ],
)
def test_what_does_not_go_with_them_is_refused(gemma, options, message):
    with pytest.raises(ConfigError, match=message):
        opened(gemma, **options)


def test_a_function_that_makes_a_backend_makes_one_for_each_kind(gemma):
    made = []
    llm = opened(gemma, attention_backend=lambda spec: made.append(spec) or TorchBackend(spec, 4))
    assert [spec.window for spec in made] == [None, WINDOW]
    assert [backend.spec.window for backend in llm.model.backend.of_group] == [None, WINDOW, WINDOW]


def test_a_draft_model_of_one_kind_is_asked_for(gemma, tmp_path):
    folder, _ = make_folder("llama", tmp_path, eos_token_id=None)
    with pytest.raises(ConfigError, match=r"draft model .* has layers of different kinds"):
        opened(folder, speculative_config=SpeculativeConfig(method="draft_model", model=str(gemma)))
    with pytest.raises(ConfigError, match=r"do not go together: a draft model shares the target"):
        opened(gemma, speculative_config=SpeculativeConfig(method="draft_model", model=str(folder)))
