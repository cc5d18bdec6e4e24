"""One engine step: its plan, which the scheduler writes and the runner reads, its results, and its trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from twophase.core.request import FinishReason


class BlockCopy(NamedTuple):
    """Every slot of block `source` is copied to block `target`."""

    source: int
    target: int


class BlockKey(NamedTuple):
    """The key of a full block: its chained digest, 16 bytes, and its own tokens, 8 bytes each."""

    digest: bytes
    token_bytes: bytes

    def of_group(self, group: int) -> "BlockKey":
        """The key of the block that a group of layers has for the same tokens."""
        return BlockKey(self.digest + bytes((group,)), self.token_bytes) if group else self


class ScheduledChunk(NamedTuple):
    """The tokens one sequence computes in a step. (A NamedTuple: hundreds are made in every step.)

    K and V of positions [0, start) are in the blocks already; [start, start + len(token_ids)) are computed now.

    Attributes:
        token_ids: At least one.
        block_ids: The sequence's block table, with room for every computed token; read-only, valid for this step only.
            -1 where a block has left the window. Groups of layers have a block each for the same tokens, side by side.
        num_samples: Tokens to draw from the last logits: 0 while a prefill goes on, n when a prompt is done, else 1.
        num_drafts: How many of the last tokens are drafts: the step samples after each, and after the token before
            them. Before the drafts are filled in: how many may be.
        num_scored: How many of the first tokens are followed by a prompt token whose log-probability is asked for.
    """

    seq_id: int
    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    num_samples: int
    num_drafts: int = 0
    num_scored: int = 0

    @property
    def draft_ids(self) -> Sequence[int]:
        return self.token_ids[len(self.token_ids) - self.num_drafts :]

    def without_drafts(self) -> "ScheduledChunk":
        return self._replace(token_ids=self.token_ids[: len(self.token_ids) - self.num_drafts], num_drafts=0)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: decodes (one token each) first, then chunks that verify drafts, then prefill chunks.

    Attributes:
        num_decodes, num_verifying: Chunks of each kind; the others are prefills.
        num_tokens: Tokens in all chunks together.
        copies: Block copies (copy-on-write) that were done since the last completed step.
        preempted: Ids of sequences that lost their blocks while this plan was made.
        wake_s: For an empty plan: when to ask the policy again, on the engine's clock.
        loaded, num_offloaded: Blocks filled from the KV tier since then, and the number of blocks copied to it.
        failed: By seq_id, why a running sequence cannot go on.
    """

    chunks: tuple[ScheduledChunk, ...]
    num_decodes: int
    num_tokens: int
    copies: tuple[BlockCopy, ...] = ()
    preempted: tuple[int, ...] = ()
    wake_s: int | float | None = None
    num_verifying: int = 0
    loaded: tuple[int, ...] = ()
    num_offloaded: int = 0
    failed: Mapping[int, Exception] = field(default_factory=dict)

    @property
    def decodes(self) -> tuple[ScheduledChunk, ...]:
        """Chunks that continue a sequence by a token, with drafts or without."""
        return self.chunks[: self.num_decodes + self.num_verifying]

    @property
    def prefills(self) -> tuple[ScheduledChunk, ...]:
        return self.chunks[self.num_decodes + self.num_verifying :]

    @property
    def is_empty(self) -> bool:
        return not self.chunks


class SampledToken(NamedTuple):
    """One drawn token; `logprob` and `top_logprobs` ((token id, log-probability), best first) only when asked for."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


Sampled = tuple[SampledToken, ...]  # the tokens of a chunk: accepted drafts, then drawn ones


class SequenceUpdate(NamedTuple):
    """The changes that a step makes to one completion: new tokens, its end, or both.

    Attributes:
        seq_id: Its sequence. Completions that had not forked yet share that of completion 0.
        tokens: New tokens; a stop token is among them.
        finish_reason, stop_reason, error: See `CompletionOutput`.
    """

    seq_id: int
    request_id: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed here
    tokens: Sampled = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One entry of the engine's trace: the work of a step, and its cost.

    Attributes:
        step: Counts from 0.
        start_s, schedule_s, run_s, update_s: Clock at the start; durations of scheduling, running and bookkeeping.
        chunks: (request id, completion index, start position, tokens) of each chunk, in batch order.
        num_decodes, num_verifying: Decodes of one token, the first chunks; chunks that verify drafts, the next ones.
        preempted, finished: (request id, completion index) that lost their blocks, or ended.
        num_waiting, num_running, blocks_in_use, blocks_cached, blocks_free: After the step.
        blocks_offloaded, blocks_loaded: Moved to and from a KV tier.
        slots_in_use: Slots of the blocks in use that hold a token, after the step; None where they are not counted.
        num_draft_tokens, num_accepted_tokens: Drafts that were verified, and drafts that the model accepted.
        prefix_cache_queries, prefix_cache_hits: Tokens of newly admitted prompts, and how many were in the cache.
        queue_age_s: How long the oldest request not yet scheduled has waited; None without one, or if not measured.
    """

    step: int
    start_s: float
    schedule_s: float
    run_s: float
    update_s: float
    chunks: tuple[tuple[str, int, int, int], ...]
    num_decodes: int
    preempted: tuple[tuple[str, int], ...]
    finished: tuple[tuple[str, int], ...]
    num_waiting: int
    num_running: int
    blocks_in_use: int
    blocks_cached: int
    blocks_free: int
    blocks_offloaded: int = 0
    blocks_loaded: int = 0
    slots_in_use: int | None = None
    num_verifying: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    queue_age_s: float | None = None

    @property
    def kv_cache_usage(self) -> float:
        """Share of the pool's blocks that a sequence holds, after the step; vLLM's kv_cache_usage_perc."""
        return self.blocks_in_use / (self.blocks_in_use + self.blocks_cached + self.blocks_free)
