"""The real default model equals transformers, tokens and logits."""

import pytest
from transformers import AutoTokenizer

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
