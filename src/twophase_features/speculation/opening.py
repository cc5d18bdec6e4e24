"""Speculation as an engine's options ask for it: a draft model is loaded before the K/V pool is sized, and gets its own
cache, of as many blocks, afterwards."""

from dataclasses import dataclass
from typing import final

import torch

from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.config import EngineConfig
from twophase.core.speculative import SpeculativeConfig
from twophase.engine.runner import ModelRunner
from twophase.model.config import ModelConfig
from twophase.model.llama import LlamaModel
from twophase.model.tokenizer import Tokenizer
from twophase.scheduling.config import SchedulerConfig
from twophase_features.speculation.draft_model import DraftModelDrafter, open_draft_model
from twophase_features.speculation.drafters import Drafter, NgramDrafter
from twophase_features.speculation.gate import SpeculationGate
from twophase_features.speculation.speculator import Speculator
from twophase_features.windows.sliding_window import SlidingWindow


@final
@dataclass(frozen=True, slots=True)
class Speculation:
    """What an engine guesses with, before there is a K/V cache.

    Attributes:
        options: How it guesses.
        drafter: The user's own; None: a draft model's, or n-gram lookup.
        draft: A draft model, what its cache stores, and what its queries see.
    """

    options: SpeculativeConfig
    drafter: Drafter | None
    draft: tuple[LlamaModel, KVCacheSpec, SlidingWindow | None] | None

    @property
    def bytes_per_block(self) -> int:
        """Of the draft model's cache, beside each block of the model's own."""
        return 0 if self.draft is None else self.draft[1].bytes_per_block

    def speculator(self, kv_cache: KVCache, limits: SchedulerConfig, use_cuda_graphs: bool) -> Speculator:
        """What the engine asks for drafts; `kv_cache` is the model's, whose block tables a draft model shares."""
        drafter = self.drafter or NgramDrafter(self.options.prompt_lookup_min, self.options.prompt_lookup_max)
        if self.draft is not None:
            model, spec, window = self.draft
            cache = KVCache(spec, kv_cache.num_blocks, kv_cache.device)
            runner = ModelRunner(model, cache, limits.max_model_len, use_cuda_graphs)
            drafter = DraftModelDrafter(runner, limits.max_num_batched_tokens, window)
        gate = SpeculationGate() if self.options.disable_when_losing else None
        return Speculator(drafter, self.options.num_speculative_tokens, gate)


def open_speculation(
    config: EngineConfig,
    target: ModelConfig,
    tokenizer: Tokenizer | None,
    device: torch.device,
    max_model_len: int,
    window: SlidingWindow | None,
) -> Speculation | None:
    """The speculation that `config` asks for, with its draft model loaded; None: it asks for none.

    Args:
        target, tokenizer: The model that tokens are guessed for.
        window: What the target's queries see: blocks outside are freed for both.

    Raises:
        ModelFolderError, ConfigError: As `open_draft_model`.
    """
    options = config.speculation
    if options is None:
        return None
    draft = None
    if options.model is not None:
        draft = open_draft_model(
            options.model,
            target,
            tokenizer,
            dtype=config.dtype,
            device=device,
            attention_backend=config.attention_backend if isinstance(config.attention_backend, str) else "auto",
            block_size=config.block_size,
            max_model_len=max_model_len,
            window=window,
        )
    return Speculation(options, config.drafter, draft)
