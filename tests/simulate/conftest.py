"""A tiny model, and the command in this process."""

from tests.cli.conftest import twophase  # noqa: F401  (a fixture)
from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
