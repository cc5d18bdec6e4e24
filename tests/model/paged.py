"""Runs our model step by step over hand-laid pages, without scheduler and engine."""

from collections.abc import Sequence

import torch

from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.core.batch import AttentionBatch
from twophase.model.llama import LlamaModel

BLOCK_SIZE = 4


class Pages:
    """Gives each of a few sequences its own scattered blocks, and runs chunks of their tokens."""

    def __init__(self, model: LlamaModel, num_seqs: int, max_tokens: int = 64) -> None:
        self.model = model
        blocks_per_seq = -(-max_tokens // BLOCK_SIZE)
        order = torch.randperm(num_seqs * blocks_per_seq, generator=torch.Generator().manual_seed(1))
        self.tables = order.view(num_seqs, blocks_per_seq)
        self.num_written = [0] * num_seqs
        config = model.config
        spec = KVCacheSpec(
            config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, model.weights.dtype, "none"
        )
        self.cache = KVCache(spec, order.numel(), torch.device("cpu"))

    def run(self, chunks: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """(sequence, tokens) pairs, decodes (one token) first; returns each chunk's logits [L, V]."""
        token_ids = torch.tensor([token for _, tokens in chunks for token in tokens])
        with torch.inference_mode():
            plan = self.model.backend.plan(self._batch(chunks))
            logits = self.model.logits(self.model.forward(token_ids, plan, self.cache))
        return list(logits.split([len(tokens) for _, tokens in chunks]))

    def _batch(self, chunks: Sequence[tuple[int, Sequence[int]]]) -> AttentionBatch:
        positions, slots, seq_lens = [], [], []
        for seq, tokens in chunks:
            start = self.num_written[seq]
            self.num_written[seq] = start + len(tokens)
            seq_lens.append(start + len(tokens))
            for position in range(start, start + len(tokens)):
                positions.append(position)
                slots.append(int(self.tables[seq, position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE)
        query_lens = [len(tokens) for _, tokens in chunks]
        width = -(-self.tables.shape[1] // 16) * 16
        tables = torch.zeros(len(chunks), width, dtype=torch.int32)
        tables[:, : self.tables.shape[1]] = self.tables[[seq for seq, _ in chunks]]
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
