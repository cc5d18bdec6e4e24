"""The command in this process, and a model's folder."""

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
