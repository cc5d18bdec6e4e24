"""The engine that this lab serves: SmolLM2 with a small pool, opened once."""

from functools import cache

from twophase import LLM, SamplingParams

MAX_NUM_SEQS, NUM_BLOCKS = 8, 36


@cache
def llm() -> LLM:
    """Warm: what a first step does only once is done."""
    opened = LLM(max_num_seqs=MAX_NUM_SEQS, num_kv_blocks=NUM_BLOCKS)
    for _ in range(2):
        opened.generate("Hello", SamplingParams(max_tokens=2, temperature=0))
    return opened
