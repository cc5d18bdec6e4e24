"""Models for the engine's tests: tiny random ones, and the real default model."""

import pytest

from tests.engine.tokenizers_for_tests import byte_level
from tests.model.conftest import smollm2_folder  # noqa: F401  (a fixture)
from tests.model.tiny import load_model, make_folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A random Llama whose vocabulary is that of a real byte-level tokenizer, saved beside it."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_level()
    make_folder("llama", folder, vocab_size=tokenizer.vocab_size, eos_token_id=tokenizer.end_id)
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_folder):
    return load_model(tiny_folder)
