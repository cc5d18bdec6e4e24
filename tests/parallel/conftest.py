"""Fixtures of the engine's tests, for engines of several processes."""

import pytest

from tests.engine.conftest import tiny_folder  # noqa: F401
from tests.model.conftest import smollm2_folder  # noqa: F401
from tests.model.tiny import make_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Heads wide enough for int8 pages."""
    path = tmp_path_factory.mktemp("wide")
    make_folder("llama-wide-heads", path)
    return path
