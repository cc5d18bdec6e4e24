"""The former place of `twophase.llm`."""

from twophase.llm import LLM, GenerationError  # noqa: F401
