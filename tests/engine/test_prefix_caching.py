"""Prompts found in the prefix cache get the tokens of no cache, and salts keep tenants apart."""

import pytest

from tests.engine.engines import check_idle
from twophase import LLM, SamplingParams
from twophase.core.errors import InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = {"prompt_token_ids": [3 + 7 * i * i % 120 for i in range(32)]}


def open_llm(folder, **options) -> LLM:
    limits = {"num_kv_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 48, "max_model_len": 64}
    return LLM(folder, device="cpu", attention_backend="torch", block_size=4, **{**limits, **options})


def tokens(llm, prompts, params=GREEDY):
    outputs = llm.generate(prompts, params, use_tqdm=False)
    check_idle(llm.engine)
    return [completion.token_ids for output in outputs for completion in output.outputs], outputs


def test_tokens_of_a_fully_cached_prompt_are_those_of_no_cache(tiny_folder):
    expected, _ = tokens(open_llm(tiny_folder, enable_prefix_caching=False), [PROMPT])
    llm = open_llm(tiny_folder)
    assert tokens(llm, [PROMPT])[0] == expected
    for prompts, params in (
        ([PROMPT], GREEDY),
        ([PROMPT] * 3, GREEDY),
        ([PROMPT], SamplingParams(n=3, temperature=0, max_tokens=8, ignore_eos=True)),
    ):
        found, outputs = tokens(llm, prompts, params)
        assert found == expected * len(found)
        assert [output.metrics.num_cached_tokens for output in outputs] == [28] * len(prompts), "all but the last block"


def test_under_pressure_and_with_swapping(tiny_folder):
    prompts = [{"prompt_token_ids": [*PROMPT["prompt_token_ids"][: 4 * k], *[9] * (k % 3)]} for k in range(1, 9)]
    expected, _ = tokens(open_llm(tiny_folder, enable_prefix_caching=False), prompts)
    for options in ({}, {"preemption_mode": "swap"}):
        llm = open_llm(tiny_folder, num_kv_blocks=14, **options)
        for _ in range(3):
            assert tokens(llm, prompts)[0] == expected


def test_a_salt_in_the_prompt_keeps_tenants_apart(tiny_folder):
    llm = open_llm(tiny_folder)

    def num_cached(salt):
        return tokens(llm, [PROMPT | {"cache_salt": salt}])[1][0].metrics.num_cached_tokens

    assert [num_cached(salt) for salt in ("a", "a", "b", "b", "", "a")] == [0, 28, 0, 28, 0, 28]
    text = llm.generate({"prompt": "some text", "cache_salt": "a"}, GREEDY, use_tqdm=False)[0]
    assert text.prompt_token_ids == llm.generate("some text", GREEDY, use_tqdm=False)[0].prompt_token_ids
    with pytest.raises(InvalidRequestError, match=r"cache_salt must be text .*, got 5"):
        llm.generate(PROMPT | {"cache_salt": 5})
    with pytest.raises(InvalidRequestError, match="a prompt is text"):
        llm.generate({"prompt": "a", "prompt_token_ids": [5]})
