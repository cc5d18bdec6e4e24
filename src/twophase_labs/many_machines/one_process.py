"""SmolLM2 in one engine, loaded once for the whole notebook: what two processes are held against."""

from functools import cache
from typing import Any

from twophase import LLM

OPTIONS: dict[str, Any] = {"device": "cpu", "num_kv_blocks": 96, "enable_prefix_caching": False}


@cache
def engine() -> LLM:
    """On the CPU, without a prefix cache: every run of the same prompts computes the same."""
    return LLM(**OPTIONS)
