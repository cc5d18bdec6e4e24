"""The real model: for varied prompts, the ids of transformers' greedy `generate`, whatever the engine does on the way."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engine.engines import check_idle
from twophase import LLM, SamplingParams

NUM_TOKENS = 12
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
BLOCK_SIZE = 16

# By length in tokens: texts of a length go through transformers together, so that it needs no padding.
TEXTS = {
    5: ["The capital of France is", "Ünïcödé und Straße sind"],
    12: [
        "<|im_start|>user\nWhat is the capital of Italy?<|im_end|>\n<|im_start|>assistant\n",
        "日本語のテキストはここにあります",
    ],
    133: ["It was the best of times, it was the worst of times, it was the age of wisdom. " * 8],
}


@pytest.fixture(scope="module")
def llm(smollm2_folder):
    return LLM(smollm2_folder, device="cpu", attention_backend="torch", num_kv_blocks=256, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def prompts(llm):
    by_length = {length: [llm.tokenizer.encode(text)[:length] for text in texts] for length, texts in TEXTS.items()}
    assert all(len(ids) == length for length, several in by_length.items() for ids in several)
    return by_length


@pytest.fixture(scope="module")
def expected(smollm2_folder, prompts):
    """Prompt ids to output ids, end-of-text included, from transformers; computed once."""
    oracle, expected = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval(), {}
    eos = oracle.generation_config.eos_token_id
    for length, several in prompts.items():
        ids = torch.tensor(several)
        with torch.inference_mode():
            new = oracle.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NUM_TOKENS)
        for prompt, row in zip(several, new[:, length:].tolist(), strict=True):
            expected[tuple(prompt)] = row[: row.index(eos) + 1] if eos in row else row
    return expected


def check(outputs, expected) -> None:
    for output in outputs:
        assert list(output.outputs[0].token_ids) == expected[output.prompt_token_ids], output.prompt_token_ids[:5]


def as_prompts(expected):
    return [{"prompt_token_ids": list(ids)} for ids in expected]


def test_batched(llm, expected):
    outputs = llm.generate(as_prompts(expected), PARAMS, use_tqdm=False)
    check(outputs, expected)
    assert max(step.num_decodes for step in llm.engine.trace) == len(expected)


def test_text_streams_and_chats(llm):
    prompt = "The capital of France is"
    params = SamplingParams(temperature=0, max_tokens=12)
    (output,) = llm.generate(prompt, params)
    assert output.outputs[0].text.startswith(" Paris")
    assert "".join(llm.stream(prompt, params)) == output.outputs[0].text
    assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)
    (answer,) = llm.chat([{"role": "user", "content": "What is 2 + 2? Answer with one number."}], PARAMS)
    assert answer.outputs[0].finish_reason == "stop"
    assert "4" in answer.outputs[0].text
    assert "<|im_end|>" not in answer.outputs[0].text
    check_idle(llm.engine)
