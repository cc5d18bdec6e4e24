"""A prompt computed in one pool, continued from another: the model's own layers, the learner's hand-over between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twophase import LLM
from twophase.cache.kv_cache import KVCache, spec_from_option
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import pack
from twophase_labs.many_machines.one_process import engine

PROMPT = "The two phases of a language model want different machines, because"
HERE, THERE = (7, 3, 11, 0), (2, 9, 5, 8)  # blocks of the prompt in the two pools
NUM_BLOCKS, BLOCK_SIZE = 12, 16

Take = Callable[[Any, list[int], int], list[Tensor]]
Put = Callable[[Any, list[int], list[Tensor]], None]


@dataclass(frozen=True)
class HandedOver:
    """What both sides said next, and what went from one to the other."""

    text_here: str
    text_there: str
    largest_difference: float
    num_bytes: int


def make_pool(llm: LLM, kv_cache_dtype: str = "auto") -> KVCache:
    """A pool of its own, beside the engine's."""
    config = llm.model_config
    spec = spec_from_option(
        kv_cache_dtype,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=BLOCK_SIZE,
        model_dtype=torch.float32,
    )
    return KVCache(spec, NUM_BLOCKS, torch.device("cpu"))


def run_tokens(llm: LLM, ids: Sequence[int], start: int, blocks: Sequence[int], pool: KVCache) -> Tensor:
    """Logits after the last of these tokens; their K and V are in the pool then."""
    batch = pack([ScheduledChunk(0, tuple(ids), start, tuple(blocks), 1)], BLOCK_SIZE)
    plan = llm.model.backend.plan(batch.view())
    return llm.model.logits(llm.model.forward(batch.arrays["token_ids"], plan, pool)[-1:])[0]


@torch.no_grad()
def hand_over(take: Take, put: Put, num_new: int = 12, kv_cache_dtype: str = "auto") -> HandedOver:
    """Compute `PROMPT` in one pool, move it layer by layer into another, and let both go on."""
    llm = engine()
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode(PROMPT)
    here, there = make_pool(llm, kv_cache_dtype), make_pool(llm, kv_cache_dtype)
    first = int(run_tokens(llm, ids, 0, HERE, here).argmax())
    num_blocks, num_bytes = -(-len(ids) // BLOCK_SIZE), 0
    for source, target in zip(here.layers, there.layers, strict=True):
        message = take(source, list(HERE[:num_blocks]), len(ids))
        num_bytes += sum(part.numel() * part.element_size() for part in message)
        put(target, list(THERE[:num_blocks]), message)
    texts, logits = [], []
    for blocks, pool in ((HERE, here), (THERE, there)):
        written, seen = [first], []
        for _ in range(num_new - 1):
            row = run_tokens(llm, written[-1:], len(ids) + len(written) - 1, blocks, pool)
            seen.append(row)
            written.append(int(row.argmax()))
        texts.append(llm.tokenizer.decode(written))
        logits.append(torch.stack(seen))
    return HandedOver(texts[0], texts[1], float((logits[0] - logits[1]).abs().max()), num_bytes)
