"""A small model of the same vocabulary that guesses what the large one will say.

It has a cache of its own, with as many blocks of as many slots, addressed by the large model's block tables. So there
is nothing to allocate, to share, to evict or to give back: a prefix hit, a fork and a preemption hold for both.

It runs only when it guesses, and then first catches up with what it has missed: a prompt, a hit on a block that it
never saw, the tokens of a time when guessing was off. For that it keeps, for each block, how many slots from the left
hold its own K and V of what the large model's slots hold. Every step says beforehand what it will overwrite.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import final

import torch

from twophase.attention.select import make_backend
from twophase.cache.kv_cache import KVCacheSpec, spec_from_option
from twophase.core.errors import ConfigError
from twophase.core.plan import ScheduledChunk, StepPlan
from twophase.engine.drafters import DraftRequest
from twophase.engine.runner import ModelRunner
from twophase.engine.sampler import SamplingError, sample
from twophase.model.config import ModelConfig, load_config
from twophase.model.llama import LlamaModel, attention_spec
from twophase.model.load import resolve_dtype
from twophase.model.prepare import resolve_model
from twophase.model.tokenizer import Tokenizer
from twophase.model.weights import load_weights


@final
class DraftModelDrafter:
    """Draws each guess as the large model will draw the token: by the request's parameters, with the random number of
    its position. So where the two models agree on the distribution they agree on the token, greedy or not.

    Args:
        runner: The draft model; its cache has the large model's number and size of blocks.
        max_catch_up: Tokens that a step may compute to catch up; a sequence that is not done by then waits a step more.
    """

    def __init__(self, runner: ModelRunner, max_catch_up: int) -> None:
        self._runner = runner
        self._block_size = runner.kv_cache.spec.block_size
        self._max_catch_up = max_catch_up
        self._num_held = [0] * runner.kv_cache.num_blocks

    def note_plan(self, plan: StepPlan) -> None:
        for copy in plan.copies:
            self._num_held[copy.target] = 0
        for swap in plan.swaps_in:
            self._num_held[swap.device_block] = 0
        for chunk in plan.chunks:
            first, offset = divmod(chunk.start, self._block_size)
            for block in chunk.block_ids[first:]:
                self._num_held[block] = min(self._num_held[block], offset)
                offset = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in requests]
        chunks = self._catch_up(requests)
        while chunks:
            # One-token chunks in front: attention computes these together.
            order = sorted(chunks, key=lambda i: len(chunks[i].token_ids))
            logits = self._runner.run([chunks[i] for i in order])
            for i in order:
                self._note_computed(chunks[i])
            ready = [i for i in order if chunks[i].num_samples]
            tokens = () if logits is None else sample(logits, [requests[i].row_after(drafts[i]) for i in ready])
            chunks = {}
            for i, token in zip(ready, tokens, strict=True):
                if isinstance(token, SamplingError):
                    continue
                drafts[i].append(token[0].token_id)
                if len(drafts[i]) < requests[i].chunk.num_drafts:
                    chunks[i] = self._next_chunk(requests[i], drafts[i])
        return drafts

    def forget(self, seq_id: int) -> None:
        pass

    def _catch_up(self, requests: Sequence[DraftRequest]) -> dict[int, ScheduledChunk]:
        """By place in `requests`: what the draft model has not computed yet, as far as a step may; at least the newest
        token, whose logits are wanted."""
        chunks, budget = {}, self._max_catch_up
        for i, (chunk, token_ids, *_) in enumerate(requests):
            start = min(self._num_computed(chunk.block_ids), len(token_ids) - 1)
            end = min(len(token_ids), start + budget)
            if end > start:
                is_last = end == len(token_ids)
                chunks[i] = ScheduledChunk(
                    chunk.seq_id, token_ids[start:end], start, chunk.block_ids, num_samples=int(is_last)
                )
                budget -= end - start
        return chunks

    def _next_chunk(self, request: DraftRequest, drafts: list[int]) -> ScheduledChunk:
        chunk, start = request.chunk, len(request.token_ids) + len(drafts) - 1
        return ScheduledChunk(chunk.seq_id, drafts[-1:], start, chunk.block_ids, num_samples=1)

    def _num_computed(self, block_ids: Sequence[int]) -> int:
        for i, block in enumerate(block_ids):
            if self._num_held[block] < self._block_size:
                return i * self._block_size + self._num_held[block]
        return len(block_ids) * self._block_size

    def _note_computed(self, chunk: ScheduledChunk) -> None:
        end = chunk.start + len(chunk.token_ids)
        for i in range(chunk.start // self._block_size, -(-end // self._block_size)):
            self._num_held[chunk.block_ids[i]] = min(self._block_size, end - i * self._block_size)


def open_draft_model(
    name: str,
    target: ModelConfig,
    target_tokenizer: Tokenizer | None,
    *,
    dtype: str,
    device: torch.device,
    attention_backend: str,
    block_size: int,
    max_model_len: int,
) -> tuple[LlamaModel, KVCacheSpec]:
    """The draft model and what its cache stores (never quantised).

    Raises:
        ModelFolderError: The model is missing, broken or not supported.
        ConfigError: It has another vocabulary than the target, or too few positions; or an option that cannot work.
    """
    folder = resolve_model(name)
    config = load_config(folder)
    _check_vocabulary(folder, config, target, target_tokenizer)
    if config.max_position_embeddings < max_model_len:
        raise ConfigError(
            f"The draft model {name} has {config.max_position_embeddings} positions, and sequences may have "
            f"{max_model_len} tokens; lower max_model_len, or use another draft model."
        )
    torch_dtype = resolve_dtype(dtype, config, device)
    spec = spec_from_option(
        "auto",
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        model_dtype=torch_dtype,
    )
    backend = make_backend(
        attention_backend, attention_spec(config), device=device, dtype=torch_dtype, block_size=block_size
    )
    return LlamaModel(config, load_weights(folder, config, torch_dtype, device), backend, max_model_len), spec


def _check_vocabulary(folder: Path, config: ModelConfig, target: ModelConfig, tokenizer: Tokenizer | None) -> None:
    if config.vocab_size != target.vocab_size:
        raise ConfigError(
            f"A draft model must have the vocabulary of the model it guesses for: {folder.name} has "
            f"{config.vocab_size} tokens, the model {target.vocab_size}. Use a smaller model of the same family."
        )
    if tokenizer is not None and _vocabulary(Tokenizer.from_folder(folder)) != _vocabulary(tokenizer):
        raise ConfigError(
            f"A draft model must have the vocabulary of the model it guesses for: both have {config.vocab_size} "
            f"tokens, but the tokenizer of {folder.name} numbers them differently. Use a model of the same family."
        )


def _vocabulary(tokenizer: Tokenizer) -> object:
    return json.loads(tokenizer.to_json())["model"]["vocab"]
