"""A tiny model, and the command in this process."""

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
