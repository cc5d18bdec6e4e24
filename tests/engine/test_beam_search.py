"""Beam search in the engine finds what transformers' `generate(num_beams=...)` finds, whatever the engine does meanwhile."""

import pytest
import torch

from tests.engine.engines import BLOCK_SIZE, make_engine, prompt_of, run
from tests.model.tiny import make_folder
from twophase.core.sampling_params import SamplingParams
from twophase.model.load import load_model

# Logits agree with transformers' within 1e-4 (tests/model), so a log-probability does within twice that.
LOGPROB_TOLERANCE = 2e-4
LENGTHS = (1, 3, 4, 5, 17, 30)
EOS = frozenset(range(40, 60))  # so many that beams end early, and several in one step
FAMILIES = ("llama", "qwen3", "mixtral", "mistral", "gemma3")


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    folder, oracle = make_folder(request.param, tmp_path_factory.mktemp(request.param), eos_token_id=None)
    options = {"dtype": torch.float32, "device": torch.device("cpu"), "attention_backend": "torch"}
    return load_model(folder, block_size=BLOCK_SIZE, **options), oracle


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder, oracle = make_folder("llama", tmp_path_factory.mktemp("llama"), eos_token_id=None)
    options = {"dtype": torch.float32, "device": torch.device("cpu"), "attention_backend": "torch"}
    return load_model(folder, block_size=BLOCK_SIZE, **options), oracle


@torch.inference_mode()
def by_transformers(oracle, prompt, params: SamplingParams, eos=EOS):
    """(tokens, score) of each beam, best first; tokens up to and with the first that ends it."""
    ids = torch.tensor([prompt["prompt_token_ids"]])
    found = oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=params.n,
        num_return_sequences=params.n,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=sorted(eos) if eos else None,
        pad_token_id=130,
        output_scores=True,
        return_dict_in_generate=True,
    )
    results = []
    scores = found.sequences_scores if params.n > 1 else [None]
    for tokens, score in zip(found.sequences[:, ids.shape[1] :].tolist(), scores, strict=True):
        end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
        results.append((tuple(tokens[:end]), None if score is None else score.item()))
    return results


def params_of(n, max_tokens=12, **options) -> SamplingParams:
    return SamplingParams(use_beam_search=True, n=n, max_tokens=max_tokens, temperature=0, **options)


def check(output, expected, params, eos=EOS) -> None:
    assert output.finished
    assert [completion.token_ids for completion in output.outputs] == [tokens for tokens, _ in expected]
    for completion, (tokens, score) in zip(output.outputs, expected, strict=True):
        length = len(tokens)
        assert completion.finish_reason == (
            "length" if length == params.max_tokens and tokens[-1] not in eos else "stop"
        )
        if score is not None:
            ours = completion.cumulative_logprob / length**params.length_penalty
            assert ours == pytest.approx(score, abs=LOGPROB_TOLERANCE * length ** (1 - params.length_penalty))


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -1.0, 2.0])
def test_equal_to_transformers(case, length_penalty, early_stopping):
    model, oracle = case
    for seed, length in enumerate(LENGTHS):
        prompt = prompt_of(seed, length)
        for width in (1, 2, 4):
            params = params_of(width, length_penalty=length_penalty, early_stopping=early_stopping)
            (output,) = run(make_engine(model, eos=EOS), [prompt], params)
            check(output, by_transformers(oracle, prompt, params), params)


PRESSED = {
    "chunks": {"budget": 8},
    "recompute": {"num_blocks": 28, "budget": 16, "prefix_caching": False},
    "recompute, hits": {"num_blocks": 28, "budget": 16},
    "swap": {"num_blocks": 28, "budget": 16, "num_swap_blocks": 40, "prefix_caching": False},
    "swap, little": {"num_blocks": 28, "budget": 16, "num_swap_blocks": 5},
    "one at a time": {"num_blocks": 28, "max_num_seqs": 4},
}


@pytest.mark.parametrize("how", PRESSED)
def test_whatever_the_engine_does_meanwhile(llama, how):
    """Beside each other and beside requests that draw, preempted or not."""
    model, oracle = llama
    prompts = [prompt_of(seed, length) for seed, length in enumerate(LENGTHS)]
    several = [params_of(width, 20, early_stopping="never") for width in (4, 2, 3, 1, 4, 2)]
    drawn = SamplingParams(n=2, seed=3, max_tokens=20, ignore_eos=True)
    few = frozenset({41, 43})  # so that texts are long
    alone = run(make_engine(model, eos=few), [prompts[2]], drawn)[0]
    expected = [by_transformers(oracle, *case, few) for case in zip(prompts, several, strict=True)]
    for _ in range(2):
        engine = make_engine(model, eos=few, **PRESSED[how])
        *outputs, last = run(engine, [*prompts, prompts[2]], [*several, drawn])
        for output, wanted, params in zip(outputs, expected, several, strict=True):
            check(output, wanted, params, few)
        assert [each.token_ids for each in last.outputs] == [each.token_ids for each in alone.outputs]
    num_preempted = sum(output.metrics.num_preemptions for output in outputs)
    assert (num_preempted > 0) == ("recompute" in how or "swap" in how)
    assert ("swap" in how) == any(step.blocks_swapped_in for step in engine.trace)
