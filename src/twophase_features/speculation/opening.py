"""Opens an engine's drafter: a draft model is loaded before the K/V pool is sized, and then gets its own cache with the
same number of blocks."""

from typing import final

import torch

from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.config import EngineConfig
from twophase.engine.runner import ModelRunner
from twophase.model.config import ModelConfig
from twophase.model.llama import LlamaModel
from twophase.model.tokenizer import Tokenizer
from twophase.scheduling.limits import SchedulerConfig
from twophase_features.speculation.config import SpeculativeConfig
from twophase_features.speculation.draft_model import DraftModelDrafter, open_draft_model
from twophase_features.speculation.drafters import NgramDrafter
from twophase_features.speculation.gate import SpeculationGate
from twophase_features.speculation.speculator import GatedSpeculator


@final
class Speculation:
    """An engine's drafter before the K/V cache exists, with its draft model loaded. A custom drafter needs no options.

    Args:
        target, tokenizer: The model that verifies drafts.
        is_windowed: Whether the target has a sliding window.

    Attributes:
        options, drafter: The configuration's, or the default options.

    Raises:
        ModelFolderError, ConfigError: As `open_draft_model`.
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
        self._draft: tuple[LlamaModel, KVCacheSpec] | None = None
        if self.options.model is not None:
            name = self.options.model
            self._draft = open_draft_model(name, config, target, tokenizer, device, max_model_len, is_windowed)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of the draft model's cache per block of the target model's."""
        return 0 if self._draft is None else self._draft[1].bytes_per_block

    def speculator(self, kv_cache: KVCache, limits: SchedulerConfig, use_step_graphs: bool) -> GatedSpeculator:
        """The engine's drafter; `kv_cache` is the target model's, whose block tables a draft model shares."""
        drafter = self.drafter or NgramDrafter(self.options.prompt_lookup_min, self.options.prompt_lookup_max)
        if self._draft is not None:
            model, spec = self._draft
            cache = KVCache(spec, kv_cache.num_blocks, kv_cache.device)
            runner = ModelRunner(model, cache, limits.max_model_len, use_step_graphs)
            drafter = DraftModelDrafter(runner, limits.max_num_batched_tokens)
        gate = SpeculationGate() if self.options.disable_when_losing else None
        return GatedSpeculator(drafter, self.options.num_speculative_tokens, gate)
