"""A tiny model for the benchmarks; they need no tokenizer."""

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
