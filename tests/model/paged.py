"""Runs our model step by step over hand-laid pages, without scheduler and engine."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from twophase.attention.interface import AttentionBatch
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.model.llama import LlamaModel
from twophase_features.windows.layer_groups import layer_groups

BLOCK_SIZE = 4


class Pages:
    """Gives each of a few sequences its own scattered blocks (in each group of layers), and runs chunks of their tokens."""

    def __init__(self, model: LlamaModel, num_seqs: int, max_tokens: int = 64) -> None:
        self.model = model
        blocks_per_seq = -(-max_tokens // BLOCK_SIZE)
        config = model.config
        groups = layer_groups(config)
        num_groups, num_layers = (1, config.num_layers) if groups is None else (len(groups.sees_all), groups.size)
        order = torch.randperm(num_groups * num_seqs * blocks_per_seq, generator=torch.Generator().manual_seed(1))
        self.tables = order.view(num_groups, num_seqs, blocks_per_seq)
        self.num_written = [0] * num_seqs
        spec = KVCacheSpec(num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, model.weights.dtype, "none")
        self.cache = KVCache(spec, order.numel(), torch.device("cpu"), layout=None if groups is None else groups.layout)

    def run(self, chunks: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """(sequence, tokens) pairs, decodes (one token) first; returns each chunk's logits [L, V]."""
        token_ids = torch.tensor([token for _, tokens in chunks for token in tokens])
        with torch.inference_mode():
            batches = tuple(self._batch(chunks, tables) for tables in self.tables)
            for seq, tokens in chunks:
                self.num_written[seq] += len(tokens)
            plan = self.model.backend.plan(replace(batches[0], groups=batches if len(batches) > 1 else ()))
            logits = self.model.logits(self.model.forward(token_ids, plan, self.cache))
        return list(logits.split([len(tokens) for _, tokens in chunks]))

    def _batch(self, chunks: Sequence[tuple[int, Sequence[int]]], tables_of: torch.Tensor) -> AttentionBatch:
        positions, slots, seq_lens = [], [], []
        for seq, tokens in chunks:
            start = self.num_written[seq]
            seq_lens.append(start + len(tokens))
            for position in range(start, start + len(tokens)):
                positions.append(position)
                slots.append(int(tables_of[seq, position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE)
        query_lens = [len(tokens) for _, tokens in chunks]
        width = -(-tables_of.shape[1] // 16) * 16
        tables = torch.zeros(len(chunks), width, dtype=torch.int32)
        tables[:, : tables_of.shape[1]] = tables_of[[seq for seq, _ in chunks]]
        return AttentionBatch(
            positions=torch.tensor(positions),
            slot_mapping=torch.tensor(slots),
            cu_query_lens=torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            block_tables=tables,
            num_decodes=next((i for i, length in enumerate(query_lens) if length > 1), len(chunks)),
            query_lens_host=tuple(query_lens),
            seq_lens_host=tuple(seq_lens),
        )
