"""Tokenizer folders: what is read from which file, and what is said when it cannot be."""

import json

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors

from twophase.core.errors import InvalidRequestError, ModelFolderError
from twophase.model.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]
FAILED = r"chat template failed on these messages: ."


def make_folder(folder, **config):
    vocabulary = {"<s>": 0, "</s>": 1, "hello": 2, "world": 3, "[unk]": 4}
    tokenizer = FastTokenizer(models.WordLevel(vocabulary, unk_token="[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_begin_of_text_is_added_and_truncation_and_padding_are_not(tmp_path):
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path))
    assert tokenizer.encode("hello world hello") == [0, 2, 3, 2]
    assert tokenizer.encode("hello", add_special_tokens=False) == [2]
    assert tokenizer.decode([0, 2, 3]) == "hello world"
    assert tokenizer.decode([0, 2, 3], skip_special_tokens=False) == "<s> hello world"


def test_chat_tokens_have_no_second_begin_of_text(tmp_path):
    make_folder(tmp_path, bos_token="<s>", chat_template="{{ bos_token }} {{ messages[0]['content'] }}")
    assert Tokenizer.from_folder(tmp_path).apply_chat_template(HELLO) == [0, 2]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", FAILED),
        ("{{ ''.__class__.__mro__ }}", FAILED),  # sandboxed
        ("{{ 1 // 0 }}", FAILED),
        ("{{ '\ud800' }}", FAILED),
        ("{{ 'x'.center(-1, 'xy') }}", FAILED),
    ],
)
def test_a_failing_chat_template_is_an_invalid_request(template, said, tmp_path):
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path, chat_template=template))
    with pytest.raises(InvalidRequestError, match=said):
        tokenizer.render_chat(HELLO)


def test_no_tokenizer_suggests_token_ids(tmp_path):
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json is missing.*skip_tokenizer_init=True"):
        Tokenizer.from_folder(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json is not a tokenizer.*Download"):
        Tokenizer.from_folder(tmp_path)


def test_an_added_token_of_the_config_is_one_token(tmp_path):
    """Also where tokenizer.json does not have it; the ids must be those that follow."""
    token = {"content": "<|im_end|>", "special": True}
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path, added_tokens_decoder={"5": token}, eos_token="<|im_end|>"))
    assert tokenizer.encode("hello<|im_end|>") == [0, 2, 5]
    assert (tokenizer.eos_token_id, tokenizer.vocab_size) == (5, 6)
    with pytest.raises(ModelFolderError, match=r"'<\|im_end\|>' must have the id 7, .* it gets 5"):
        Tokenizer.from_folder(make_folder(tmp_path, added_tokens_decoder={"7": token}))


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": object()}], [{"role": {1}}]])
def test_messages_of_another_form(messages, tmp_path):
    """A template sees plain data alone: methods of objects are no part of its sandbox."""
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path, chat_template="{{ messages }}"))
    with pytest.raises(InvalidRequestError, match="Each must be a dict with 'role' and 'content'"):
        tokenizer.render_chat(messages)
