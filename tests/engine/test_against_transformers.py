"""Whatever the engine does with a request, its greedy tokens are those of transformers' `generate`."""

import pytest
import torch

from tests.engine.engines import BLOCK_SIZE, make_engine, prompt_of, run, tokens_of
from tests.model.tiny import load_model, make_folder
from twophase.core.request import SamplingParams

LENGTHS = (1, 3, 4, 5, 17, 30, 41)  # below, at and above block boundaries; beyond the sliding window
NUM_TOKENS = 20
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate(LENGTHS)]


@torch.inference_mode()
def greedy(oracle, prompt, num_tokens=NUM_TOKENS) -> list[int]:
    ids = torch.tensor([prompt["prompt_token_ids"]])
    mask = torch.ones_like(ids)
    new = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens}
    return oracle.generate(ids, attention_mask=mask, do_sample=False, **new)[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen3", "mixtral", "qwen3-moe-some-dense"])
def case(request, tmp_path_factory):
    """A model, and what transformers generates with it."""
    folder, oracle = make_folder(request.param, tmp_path_factory.mktemp(request.param), eos_token_id=None)
    return load_model(folder), [greedy(oracle, prompt) for prompt in PROMPTS]


def test_alone(case):
    model, expected = case
    engine = make_engine(model, prefix_caching=False)
    assert [tokens_of(run(engine, [prompt], PARAMS)[0]) for prompt in PROMPTS] == expected


def test_batched(case):
    model, expected = case
    engine = make_engine(model, budget=1000)
    assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected
    assert engine.trace[0].num_decodes == 0
    assert len(engine.trace[0].chunks) == len(PROMPTS), "the prompts were to be one ragged batch"


def test_chunked(case):
    model, expected = case
    engine = make_engine(model, budget=8)
    assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected
    assert any(start and count > 1 for step in engine.trace for _, _, start, count in step.chunks)
    assert any(step.num_decodes and len(step.chunks) > step.num_decodes for step in engine.trace), "no mixed batch"


def test_cache_hit(case):
    model, expected = case
    engine = make_engine(model)
    run(engine, PROMPTS, PARAMS)
    outputs = run(engine, PROMPTS, PARAMS)
    assert [tokens_of(output) for output in outputs] == expected
    hits = [output.metrics.num_cached_tokens for output in outputs]
    assert hits == [(length - 1) // BLOCK_SIZE * BLOCK_SIZE for length in LENGTHS]


def test_preempted(case):
    model, expected = case
    # All of them together would come to hold 64 blocks.
    engine = make_engine(model, num_blocks=28, budget=16, prefix_caching=False)
    outputs = run(engine, PROMPTS, PARAMS)
    assert [tokens_of(output) for output in outputs] == expected
    assert sum(output.metrics.num_preemptions for output in outputs) > 0


def test_completions_share_pages_and_are_all_greedy(case):
    model, expected = case
    engine = make_engine(model, max_num_seqs=12)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, n=3)
    for output, tokens in zip(run(engine, PROMPTS[3:], params), expected[3:], strict=True):
        assert [list(completion.token_ids) for completion in output.outputs] == [tokens] * 3
