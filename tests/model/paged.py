"""Runs our model step by step over hand-laid pages, without scheduler and engine."""

from collections.abc import Sequence

import torch

from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import pack
from twophase.model.llama import LlamaModel
from twophase_features.windows.layer_groups import layer_groups

BLOCK_SIZE = 4


class Pages:
    """Gives each of a few sequences its own scattered blocks (in each group of layers), and runs chunks of their tokens."""

    def __init__(self, model: LlamaModel, num_seqs: int, max_tokens: int = 64) -> None:
        self.model, config = model, model.config
        groups = layer_groups(config)
        num_groups, num_layers = (1, config.num_layers) if groups is None else (len(groups.sees_all), groups.size)
        num_blocks = num_groups * num_seqs * -(-max_tokens // BLOCK_SIZE)
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
        self.tables = order.view(num_seqs, -1).tolist()
        self.num_written = [0] * num_seqs
        spec = KVCacheSpec(num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, model.weights.dtype, "none")
        self.cache = KVCache(spec, num_blocks, torch.device("cpu"), layout=None if groups is None else groups.layout)

    @torch.inference_mode()
    def run(self, chunks: Sequence[tuple[int, list[int]]]) -> list[torch.Tensor]:
        """(sequence, tokens) pairs, decodes (one token) first; returns each chunk's logits [L, V]."""
        scheduled = [ScheduledChunk(s, tokens, self.num_written[s], self.tables[s], 1) for s, tokens in chunks]
        for seq, tokens in chunks:
            self.num_written[seq] += len(tokens)
        packed = pack(scheduled, BLOCK_SIZE, num_groups=self.cache.num_groups)
        plan = self.model.backend.plan(packed.view())
        logits = self.model.logits(self.model.forward(packed.arrays["token_ids"], plan, self.cache))
        return list(logits.split([len(tokens) for _, tokens in chunks]))
