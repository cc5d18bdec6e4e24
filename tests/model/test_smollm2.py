"""The real default model equals transformers, tokens and logits."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.model.paged import Pages
from tests.model.tiny import load_model
from twophase.model.config import load_config
from twophase.model.tokenizer import Tokenizer

TEXTS = [
    "The capital of France is",
    " leading space, trailing space ",
    "In 1984, 12345 and ٣٤ and ½ and x²; a  1, a   22",
    "don't, we'll, I'VE; ünïcödé naïve café",
    "日本語のテキスト 😀👍🏽 e\u0301 \u200b \ufeff",
    "def f(x):\n\treturn  x ** 2  # tabs\n\n\n    spaces\r\n",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><|not_special|>",
    "",
    "a" * 300,
    "".join(chr(c) for c in range(32, 256)),
]

CONVERSATIONS = [
    [{"role": "user", "content": "What is 2 + 2?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "<b>"}],
]


@pytest.fixture(scope="session")
def oracle_tokenizer(smollm2_folder):
    return AutoTokenizer.from_pretrained(smollm2_folder)


@pytest.fixture(scope="session")
def tokenizer(smollm2_folder):
    return Tokenizer.from_folder(smollm2_folder)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_equal_transformers_and_round_trip(text, tokenizer, oracle_tokenizer):
    ids = tokenizer.encode(text)
    assert ids == oracle_tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(ids) == oracle_tokenizer.decode(ids, skip_special_tokens=True)


def test_characters_without_a_token_are_dropped_as_in_transformers(tokenizer, oracle_tokenizer):
    """SmolLM2's vocabulary lacks 21 of the 256 bytes: six control characters and starts of characters never assigned."""
    for character in "\x04\x06\x13\x14\x16\x1d":
        ids = oracle_tokenizer.encode(f"a{character}b")
        assert tokenizer.encode(f"a{character}b") == ids == [*tokenizer.encode("a"), *tokenizer.encode("b")]


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chat_template_equals_transformers(messages, add_generation_prompt, tokenizer, oracle_tokenizer):
    expected = oracle_tokenizer.apply_chat_template(
        messages, add_generation_prompt=add_generation_prompt, return_dict=False
    )
    assert tokenizer.apply_chat_template(messages, add_generation_prompt) == expected


def test_special_tokens(smollm2_folder, tokenizer):
    assert (tokenizer.eos_token_id, tokenizer.vocab_size) == (2, 49152)
    assert load_config(smollm2_folder).eos_token_ids == {2}


def test_logits_and_greedy_tokens_equal_transformers(smollm2_folder, tokenizer):
    oracle = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    model = load_model(smollm2_folder)
    tokens = tokenizer.apply_chat_template(CONVERSATIONS[0])
    pages = Pages(model, 1)
    logits = pages.run([(0, tokens)])[0]
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens]), use_cache=False).logits[0]
        # 30 layers, logits up to 30: 1e-3 is 3e-5 of them. Measured: 6e-5.
        assert (logits - expected).abs().max() < 1e-3
        output = oracle.generate(torch.tensor([tokens]), max_new_tokens=12, do_sample=False)[0, len(tokens) :].tolist()
    ours = [int(logits[-1].argmax())]
    while len(ours) < len(output):
        ours.append(int(pages.run([(0, ours[-1:])])[0][-1].argmax()))
    assert ours == output
    assert "4" in tokenizer.decode(ours)
