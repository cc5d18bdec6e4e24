"""SmolLM2 in the engine, opened once: as `LLM`, with another head map or attention, or one step at a time."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase import LLM, SamplingParams
from twophase.cache.kv_cache import KVCache
from twophase.cache.manager import BlockTable, CacheManager
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import ModelRunner
from twophase.model.llama import LlamaModel, attention_spec
from twophase_labs.autoregression.heads import MappedHeads
from twophase_labs.kit.own_attention import OwnAttention

BLOCK_SIZE = 16
NUM_BLOCKS = 64


@cache
def open_engine() -> LLM:
    """The engine with the default model; four requests run at once, the others wait."""
    return LLM(device="cpu", block_size=BLOCK_SIZE, num_kv_blocks=NUM_BLOCKS, max_num_seqs=4)


@final
class NextLogits:
    """The logits after a text that grows at its end: `next_logits(ids) -> [V]`. K and V stay in the engine's pages.

    Args:
        model: What to run; SmolLM2 as loaded, unless another model over its weights is given.
    """

    def __init__(self, model: LlamaModel | None = None) -> None:
        model = open_engine().model if model is None else model
        kv_cache = KVCache(open_engine().kv_cache.spec, NUM_BLOCKS, model.device)
        self._runner = ModelRunner(model, kv_cache, NUM_BLOCKS * BLOCK_SIZE)
        self._cache = CacheManager(NUM_BLOCKS, BLOCK_SIZE, enable_prefix_caching=False)
        self._ids: list[int] = []
        self._table = self._cache.open([])

    def __call__(self, ids: Sequence[int]) -> Float[Tensor, "V"]:
        if not self._ids or list(ids[: len(self._ids)]) != self._ids or len(ids) == len(self._ids):
            self._cache.close(self._table)
            self._table, self._ids = self._cache.open(ids), []
        self._cache.grow(self._table, len(ids))
        start, self._ids = len(self._ids), list(ids)
        new_ids, block_ids = tuple(ids[start:]), tuple(self._table.block_ids)
        logits = self._runner.run(
            [ScheduledChunk(seq_id=0, token_ids=new_ids, start=start, block_ids=block_ids, num_samples=1)]
        )
        assert logits is not None
        return logits[0]


@final
class EngineStep:
    """SmolLM2 in the engine's runner as `step(new_ids, cache)`; K and V stay in the engine's blocks.

    The cache that it takes and returns is a sequence's block table; `empty_cache()` opens one, and closes the one
    before. `new_ids` is [1, L]. Of the logits the runner computes the last row only, which is all that generation
    asks for.

    Args:
        attend: What computes the attention of all layers: `attend(q [H, L, D], k [H, S, D], v [H, S, D])`, the queries
            being the last L of S positions. None is the engine's own.

    Attributes:
        num_attended: How often `attend` was called.
    """

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None) -> None:
        self.num_attended = 0
        model, kv_spec = open_engine().model, open_engine().kv_cache.spec
        if attend is not None:
            own = OwnAttention(attention_spec(model.config), BLOCK_SIZE, prefill=self._prefill, decode=self._decode)
            model = LlamaModel(model.config, model.weights, own, NUM_BLOCKS * BLOCK_SIZE)
        self._attend = attend
        self._runner = ModelRunner(model, KVCache(kv_spec, NUM_BLOCKS, model.device), NUM_BLOCKS * BLOCK_SIZE)
        self._blocks = CacheManager(NUM_BLOCKS, BLOCK_SIZE, enable_prefix_caching=False)
        self._table: BlockTable | None = None

    def empty_cache(self) -> BlockTable:
        if self._table is not None:
            self._blocks.close(self._table)
        self._table = self._blocks.open([])
        return self._table

    def __call__(self, new_ids: Int[Tensor, "1 L"], table: BlockTable) -> tuple[Float[Tensor, "1 1 V"], BlockTable]:
        start = table.num_tokens
        self._blocks.grow(table, start + new_ids.shape[1])
        token_ids, block_ids = tuple(new_ids[0].tolist()), tuple(table.block_ids)
        chunk = ScheduledChunk(seq_id=0, token_ids=token_ids, start=start, block_ids=block_ids, num_samples=1)
        logits = self._runner.run([chunk])
        assert logits is not None
        return logits[None], table

    def _prefill(self, q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lens: Tensor, cuts: Tensor, _: Any) -> Tensor:
        """Each sequence's K and V out of its blocks, a K/V head for every query head, and `attend` over them."""
        assert self._attend is not None
        out = torch.empty_like(q)
        for table, num_keys, start, end in zip(tables, lens.tolist(), cuts.tolist(), cuts[1:].tolist(), strict=False):
            blocks = table[: -(-num_keys // BLOCK_SIZE)].long()
            keys, values = (
                cache[blocks].transpose(0, 1).flatten(1, 2)[:, :num_keys].repeat_interleave(q.shape[1] // k.shape[1], 0)
                for cache in (k, v)
            )
            out[start:end] = self._attend(q[start:end].transpose(0, 1), keys, values).transpose(0, 1)
            self.num_attended += 1
        return out

    def _decode(self, q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lens: Tensor, scale: float) -> Tensor:
        return self._prefill(q, k, v, tables, lens, torch.arange(len(q) + 1), scale)


def model_with_heads(kv_head_of: Callable[[int, int, int], int]) -> LlamaModel:
    """SmolLM2 whose query head h reads KV head `kv_head_of(h, H, H_kv)`."""
    model = open_engine().model
    spec = attention_spec(model.config)
    kv_heads = [kv_head_of(h, spec.num_heads, spec.num_kv_heads) for h in range(spec.num_heads)]
    return LlamaModel(model.config, model.weights, MappedHeads(spec, BLOCK_SIZE, kv_heads), NUM_BLOCKS * BLOCK_SIZE)


def greedy_text(model: LlamaModel, prompt: str, num_new: int) -> str:
    """What the model says next, the likeliest token each time."""
    tokenizer = open_engine().tokenizer
    assert tokenizer is not None
    next_logits = NextLogits(model)
    ids = prompt_ids = tokenizer.encode(prompt)
    for _ in range(num_new):
        ids = [*ids, int(next_logits(ids).argmax())]
    return tokenizer.decode(ids[len(prompt_ids) :])


@cache
def first_probabilities(prompt: str) -> Float[Tensor, "V"]:
    """SmolLM2's distribution of the token that follows."""
    tokenizer = open_engine().tokenizer
    assert tokenizer is not None
    return torch.softmax(NextLogits()(tokenizer.encode(prompt)), -1)


def serve(num_tokens: Sequence[int]) -> tuple[list[float], list[tuple[float, int]]]:
    """Run requests of these lengths, all sent at once.

    Returns each request's seconds from sending to its end, and of each step its seconds and how many requests were
    there, running or waiting.
    """
    engine = open_engine().engine
    sent_s = time.monotonic()
    for number, length in enumerate(num_tokens):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        engine.add_request(f"q{number}", f"{number} times {number} is", params, stream=False)
    latencies: list[float] = []
    steps: list[tuple[float, int]] = []
    before_s = sent_s
    while engine.has_unfinished_requests():
        num_there = len(num_tokens) - len(latencies)
        outputs = engine.step()
        now_s = time.monotonic()
        latencies += [now_s - sent_s for _ in outputs]
        steps.append((now_s - before_s, num_there))
        before_s = now_s
    return latencies, steps
