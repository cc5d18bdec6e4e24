"""Engines that guess, and drafters that know too much, too little, or break."""

import torch

from tests.engine.engines import make_engine, run, tokens_of, with_backend
from twophase.attention.torch_backend import TorchBackend
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.engine.engine import Engine
from twophase.engine.runner import ModelRunner
from twophase.model.llama import LlamaModel
from twophase_features.speculation.draft_model import DraftModelDrafter
from twophase_features.speculation.drafters import NgramDrafter
from twophase_features.speculation.speculator import GatedSpeculator


class Silent:
    """A drafter that has nothing to say; the others differ in what they do."""

    def note_plan(self, plan) -> None:
        pass

    def propose(self, requests) -> list[list[int]]:
        return [[] for _ in requests]

    def forget(self, seq_id) -> None:
        pass


class Oracle(Silent):
    """Knows the outputs, and is wrong at the output positions of which `is_wrong` says so."""

    def __init__(self, prompts, outputs, is_wrong=lambda position: False) -> None:
        self.outputs = {tuple(p["prompt_token_ids"]): out for p, out in zip(prompts, outputs, strict=True)}
        self.is_wrong = is_wrong

    def propose(self, requests) -> list[list[int]]:
        return [self._guess(request) for request in requests]

    def _guess(self, request) -> list[int]:
        token_ids = tuple(request.token_ids)
        for prompt, output in self.outputs.items():
            start = len(token_ids) - len(prompt)
            if start > 0 and token_ids[: len(prompt)] == prompt and list(token_ids[len(prompt) :]) == output[:start]:
                right = output[start : start + request.chunk.num_drafts]
                return [(t + 1) % 330 if self.is_wrong(start + i) else t for i, t in enumerate(right)]
        return []


class Answering(Silent):
    """Answers whatever `answer(request)` says, or raises it."""

    def __init__(self, answer) -> None:
        self.answer = answer

    def propose(self, requests) -> list[list[int]]:
        return [self.answer(request) for request in requests]


def speculating(model: LlamaModel, drafter=None, max_drafts: int = 4, gate=None, **options) -> Engine:
    return make_engine(model, speculator=GatedSpeculator(drafter or NgramDrafter(), max_drafts, gate), **options)


def drafting_with(model: LlamaModel, num_blocks: int = 96, block_size: int = 4, max_catch_up: int = 64):
    """A drafter that is this model."""
    config = model.config
    spec = KVCacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, block_size, torch.float32)
    cache = KVCache(spec, num_blocks, model.device)
    for tensor in cache.storage:
        tensor.fill_(float("nan"))  # what was never computed must not be read
    return DraftModelDrafter(ModelRunner(in_blocks_of(model, block_size), cache, 128), max_catch_up)


def in_blocks_of(model: LlamaModel, block_size: int) -> LlamaModel:
    """The same model over blocks of another size."""
    if model.backend.block_size == block_size:
        return model
    return with_backend(model, TorchBackend(model.backend.spec, block_size))


def plain_outputs(model: LlamaModel, prompts, params, **options) -> list[list[int]]:
    return [tokens_of(output) for output in run(make_engine(model, **options), prompts, params)]
