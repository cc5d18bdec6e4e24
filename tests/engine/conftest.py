"""Models for the engine's tests: tiny random ones, and the real default model."""

import pytest

from tests.engine.tokenizers_for_tests import make_text_folder
from tests.model.conftest import smollm2_folder  # noqa: F401  (a fixture)
from tests.model.tiny import load_model
from twophase import LLM


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A random Llama whose vocabulary is that of a real byte-level tokenizer, saved beside it."""
    return make_text_folder(tmp_path_factory.mktemp("tiny"))[0]


@pytest.fixture(scope="session")
def tiny_model(tiny_folder):
    return load_model(tiny_folder)


@pytest.fixture(scope="session")
def llm(tiny_folder):
    """For tests that leave it idle."""
    return LLM(tiny_folder, num_kv_blocks=64, block_size=4)
