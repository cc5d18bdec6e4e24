"""Perplexity on the engine, against the forward pass of transformers."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from twophase import LLM
from twophase.core.errors import InvalidRequestError
from twophase_tools.bench.perplexity import perplexity, prose, step_logits, token_losses

TEXT = [3 + 7 * i * i % 120 for i in range(45)]


def open_llm(folder, budget=16, **options) -> LLM:
    limits = {"num_kv_blocks": 16, "max_num_seqs": 1, "max_num_batched_tokens": budget, "max_model_len": 64}
    return LLM(folder, device="cpu", attention_backend="torch", block_size=4, **{**limits, **options})


def losses_of_transformers(folder, token_ids):
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = oracle(torch.tensor([token_ids])).logits[0, :-1]
    return F.cross_entropy(logits, torch.tensor(token_ids[1:]), reduction="none")


@pytest.mark.parametrize("budget", [1, 7, 16, 64])
def test_losses_are_those_of_transformers_whatever_the_steps(tiny_folder, budget):
    losses = token_losses(open_llm(tiny_folder, budget), TEXT)
    torch.testing.assert_close(losses, losses_of_transformers(tiny_folder, TEXT), atol=1e-4, rtol=1e-5)


def test_on_the_real_model(smollm2_folder):
    llm = open_llm(smollm2_folder, budget=100, max_model_len=256, num_kv_blocks=64)
    token_ids = llm.tokenizer.encode(prose())[:150]
    expected = losses_of_transformers(smollm2_folder, token_ids)
    torch.testing.assert_close(token_losses(llm, token_ids), expected, atol=1e-3, rtol=1e-4)
    assert perplexity(llm, token_ids) == pytest.approx(math.exp(expected.mean()), rel=1e-4)


def test_attention_reads_what_the_pages_hold(tiny_folder):
    """Pages of fewer bits show in the losses, and a page that is spoilt between two steps shows from then on."""
    exact = token_losses(open_llm(tiny_folder), TEXT)
    assert 1e-6 < (token_losses(open_llm(tiny_folder, kv_cache_dtype="bfloat16"), TEXT) - exact).abs().max() < 0.1
    llm = open_llm(tiny_folder)
    steps = step_logits(llm, TEXT)
    clean = list(step_logits(open_llm(tiny_folder), TEXT))
    torch.testing.assert_close(next(steps), clean[0])
    for tensor in llm.kv_cache.storage:
        tensor[:, : llm.kv_cache.num_blocks // 2].neg_()
    assert (next(steps) - clean[1]).abs().max() > 0.01


def test_nothing_comes_from_the_prefix_cache_and_nothing_stays_in_use(tiny_folder):
    llm = open_llm(tiny_folder, num_kv_blocks=32)
    first = token_losses(llm, TEXT)
    assert torch.equal(token_losses(llm, TEXT), first)
    assert llm.engine.stats().cache.num_hit_tokens == 0
    next(steps := step_logits(llm, TEXT))
    assert llm.engine.stats().cache.num_in_use > 0
    steps.close()
    assert llm.engine.stats().cache.num_in_use == 0
    assert llm.generate({"prompt_token_ids": TEXT}, use_tqdm=False)[0].finished


def test_with_a_salt_a_text_is_read_on(tiny_folder):
    whole = torch.cat(list(step_logits(open_llm(tiny_folder), TEXT)))
    llm = open_llm(tiny_folder, num_kv_blocks=32)
    assert len(torch.cat(list(step_logits(llm, TEXT[:25], "a")))) == 25
    for salt, num_known in (("b", 0), ("a", 24), ("", 0)):  # six blocks of 4 were full
        rows = torch.cat(list(step_logits(llm, TEXT, salt)))
        assert len(rows) == len(TEXT) - num_known
        torch.testing.assert_close(rows, whole[num_known:], atol=1e-4, rtol=1e-5)


def test_what_cannot_be_scored_is_refused(tiny_folder):
    llm = open_llm(tiny_folder)
    with pytest.raises(InvalidRequestError, match="at least 2, got 1"):
        perplexity(llm, [5])
    with pytest.raises(InvalidRequestError, match="max_model_len=64"):
        perplexity(llm, [5] * 64)
    llm.engine.add_request("a", {"prompt_token_ids": TEXT})
    with pytest.raises(InvalidRequestError, match="unfinished"):
        perplexity(llm, TEXT)
