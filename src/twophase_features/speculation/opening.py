"""Opens an engine's drafter: a draft model is loaded before the K/V pool is sized, and then gets its own cache with the
same number of blocks."""

import json
from pathlib import Path
from typing import final

import torch

from twophase.cache.kv_cache import KVCache, KVCacheSpec, spec_from_option
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.engine.runner import ModelRunner
from twophase.model.config import ModelConfig, load_config
from twophase.model.llama import LlamaModel, attention_spec
from twophase.model.machine import make_backend, resolve_dtype
from twophase.model.tokenizer import Tokenizer
from twophase.model.weights import load_weights
from twophase.scheduling.limits import SchedulerConfig
from twophase_features.model_store.prepare import resolve_model
from twophase_features.speculation.config import SpeculativeConfig
from twophase_features.speculation.draft_model import DraftModelDrafter
from twophase_features.speculation.drafters import NgramDrafter
from twophase_features.speculation.gate import SpeculationGate
from twophase_features.speculation.speculator import GatedSpeculator


@final
class Speculation:
    """An engine's drafter before the K/V cache exists, with its draft model loaded. A custom drafter needs no options.

    Args:
        config: Its dtype, attention backend and block size are the draft model's too.
        target, tokenizer: The model that verifies drafts.
        is_windowed: Whether the target has a sliding window.

    Attributes:
        options, drafter: The configuration's, or the default options.
        models, runners: The draft model, if there is one; and its runner, once `speculator` has made it.

    Raises:
        ModelFolderError: The draft model is missing, broken or not supported.
        ConfigError: It has another vocabulary than the target, too few positions or layers of different kinds; the
            target has a sliding window; or an option is invalid.
    """

    def __init__(
        self,
        config: EngineConfig,
        target: ModelConfig,
        tokenizer: Tokenizer | None,
        device: torch.device,
        max_model_len: int,
        is_windowed: bool,
    ) -> None:
        self.options, self.drafter = config.speculative_config or SpeculativeConfig(), config.drafter
        self._spec: KVCacheSpec | None = None
        self.models: list[LlamaModel] = []
        self.runners: list[ModelRunner] = []
        if self.options.model is not None:
            folder = resolve_model(self.options.model)
            draft = load_config(folder)
            _check(folder, draft, target, tokenizer, max_model_len, is_windowed)
            model, self._spec = _open(folder, draft, config, device, max_model_len)
            self.models.append(model)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of the draft model's cache per block of the target model's."""
        return 0 if self._spec is None else self._spec.bytes_per_block

    def speculator(self, kv_cache: KVCache, limits: SchedulerConfig, use_step_graphs: bool) -> GatedSpeculator:
        """The engine's drafter; `kv_cache` is the target model's, whose block tables a draft model shares."""
        drafter = self.drafter or NgramDrafter(self.options.prompt_lookup_min, self.options.prompt_lookup_max)
        if self._spec is not None:
            cache = KVCache(self._spec, kv_cache.num_blocks, kv_cache.device)
            self.runners = [ModelRunner(self.models[0], cache, limits.max_model_len, use_step_graphs)]
            drafter = DraftModelDrafter(self.runners[0], limits.max_num_batched_tokens)
        gate = SpeculationGate() if self.options.disable_when_losing else None
        return GatedSpeculator(drafter, self.options.num_speculative_tokens, gate)


def _open(
    folder: Path, draft: ModelConfig, engine: EngineConfig, device: torch.device, max_model_len: int
) -> tuple[LlamaModel, KVCacheSpec]:
    """The draft model, and its cache's spec (never quantised)."""
    dtype = resolve_dtype(engine.dtype, draft, device)
    spec = spec_from_option(
        "auto",
        num_layers=draft.num_layers,
        num_kv_heads=draft.num_kv_heads,
        head_dim=draft.head_dim,
        block_size=engine.block_size,
        model_dtype=dtype,
    )
    name = engine.attention_backend if isinstance(engine.attention_backend, str) else "auto"
    backend = make_backend(name, attention_spec(draft), device=device, dtype=dtype, block_size=engine.block_size)
    return LlamaModel(draft, load_weights(folder, draft, dtype, device), backend, max_model_len), spec


def _check(
    folder: Path,
    draft: ModelConfig,
    target: ModelConfig,
    tokenizer: Tokenizer | None,
    max_model_len: int,
    is_windowed: bool,
) -> None:
    """Whether the draft model can share the target's blocks, and its tokens."""
    if is_windowed:
        raise ConfigError(
            "a draft model reads the target model's blocks late, when the target's sliding window may have freed them; "
            "use n-gram drafts (leave out `model`)."
        )
    if draft.is_mixed:
        raise ConfigError(
            f"The draft model {folder.name} has layers of different kinds, which need blocks of their own; a draft "
            f"model shares the target model's blocks. Use a draft model whose layers all see the same keys."
        )
    if draft.max_position_embeddings < max_model_len:
        raise ConfigError(
            f"The draft model {folder.name} has {draft.max_position_embeddings} positions, and sequences may have "
            f"{max_model_len} tokens; lower max_model_len, or use another draft model."
        )
    if draft.vocab_size != target.vocab_size:
        raise ConfigError(
            f"A draft model must have the target model's vocabulary: {folder.name} has {draft.vocab_size} tokens, the "
            f"model {target.vocab_size}. Use a smaller model of the same family."
        )
    tokenizers = () if tokenizer is None else (tokenizer, Tokenizer.from_folder(folder))
    vocabularies = [json.loads(each.to_json())["model"]["vocab"] for each in tokenizers]
    if vocabularies and vocabularies[0] != vocabularies[1]:
        raise ConfigError(
            f"A draft model must have the target model's vocabulary: both have {draft.vocab_size} tokens, but the "
            f"tokenizer of {folder.name} numbers them differently. Use a model of the same family."
        )
