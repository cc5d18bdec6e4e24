"""Drafts by a small model with the large model's vocabulary.

The draft model has its own cache, with the same number and size of blocks, addressed by the large model's block tables.
So it needs no allocator: a prefix hit, a fork and a preemption apply to both caches.

It runs only when it drafts, and first catches up with the tokens that it has missed: a prompt, a hit on a block that it
never computed, tokens decoded while drafting was off. For this it counts, for each block, the leading slots that hold
its own K and V of the large model's tokens. Every step reports beforehand the slots that it will overwrite and the
blocks filled by other engines.

A sliding window frees blocks that the draft model may not have read yet, so the two do not go together.
"""

from collections.abc import Sequence
from typing import final

from twophase.core.plan import ScheduledChunk, StepPlan
from twophase.engine.runner import ModelRunner
from twophase.engine.sampler import SamplingError, sample
from twophase_features.speculation.drafter import DraftRequest


@final
class DraftModelDrafter:
    """Draws each draft as the large model will draw the token: by the request's parameters, with the position's random
    number. So where the models agree on the distribution they agree on the token, greedy or not.

    Args:
        runner: The draft model; its cache has the large model's number and size of blocks.
        max_catch_up: Tokens that a step may compute to catch up; the rest catches up in the next step.
    """

    def __init__(self, runner: ModelRunner, max_catch_up: int) -> None:
        self._runner = runner
        self._block_size = runner.kv_cache.spec.block_size
        self._max_catch_up = max_catch_up
        self._num_held = [0] * runner.kv_cache.num_blocks

    def note_plan(self, plan: StepPlan) -> None:
        for copy in plan.copies:
            self._num_held[copy.target] = 0
        for block in plan.loaded:
            self._num_held[block] = 0
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
            done, chunks = chunks, {}
            for i, token in zip(ready, tokens, strict=True):
                if isinstance(token, SamplingError):
                    continue
                drafts[i].append(token[0].token_id)
                # Nothing follows a token that ends the text, and a grammar accepts no further token.
                is_end = token[0].token_id in requests[i].stop_token_ids
                if not is_end and len(drafts[i]) < requests[i].chunk.num_drafts:
                    chunk = done[i]
                    start = chunk.start + len(chunk.token_ids)
                    chunks[i] = ScheduledChunk(chunk.seq_id, drafts[i][-1:], start, chunk.block_ids, num_samples=1)
        return drafts

    def forget(self, seq_id: int) -> None:
        pass

    def _catch_up(self, requests: Sequence[DraftRequest]) -> dict[int, ScheduledChunk]:
        """By index in `requests`: the next tokens for the draft model to compute, within the step's budget; at least
        the newest token, whose logits are needed."""
        chunks, budget = {}, self._max_catch_up
        for i, (chunk, token_ids, *_) in enumerate(requests):
            start = self._first_lacking(chunk.block_ids, len(token_ids))
            end = min(len(token_ids), start + budget)
            if end > start:
                is_last = end == len(token_ids)
                new = token_ids[start:end]
                chunks[i] = ScheduledChunk(chunk.seq_id, new, start, chunk.block_ids, num_samples=int(is_last))
                budget -= end - start
        return chunks

    def _first_lacking(self, block_ids: Sequence[int], num_tokens: int) -> int:
        """The first token to compute: at most the newest one, whose logits are wanted in any case."""
        for i, block in enumerate(block_ids):
            if self._num_held[block] < self._block_size:
                return min(i * self._block_size + self._num_held[block], num_tokens - 1)
        return num_tokens - 1

    def _note_computed(self, chunk: ScheduledChunk) -> None:
        end = chunk.start + len(chunk.token_ids)
        for i in range(chunk.start // self._block_size, -(-end // self._block_size)):
            self._num_held[chunk.block_ids[i]] = min(self._block_size, end - i * self._block_size)
