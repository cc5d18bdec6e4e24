"""Fixtures of the engine's tests, for engines of several processes."""

from tests.engine.conftest import tiny_folder  # noqa: F401
from tests.model.conftest import smollm2_folder  # noqa: F401
