"""A sequence: one completion of a request, its tokens and its blocks."""

import enum
from dataclasses import dataclass, field, replace
from typing import Any

from twophase.cache.allocator import KVTable
from twophase.core.plan import BlockKey
from twophase.core.request import Request


class SequenceStatus(enum.Enum):
    """The state of a sequence. It holds blocks while it is RUNNING, and waits again once it is PREEMPTED."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its output so far. Mutable; only the scheduler and its planner change it.

    K and V of tokens [0, num_computed_tokens) are in blocks; [num_computed_tokens, len(token_ids)) are to be computed.
    A decoding sequence has exactly one token to compute: its newest one, sampled but not yet run through the model.

    Attributes:
        seq_id: Unique in one scheduler, counts up.
        index: Which completion of the request, 0 .. n-1.
        arrival_order: seq_id of the request's completion 0: later requests have larger ones.
        token_ids: Prompt and output.
        max_num_tokens, stop_token_ids: It ends when it has this many tokens, or after one of these tokens.
        num_completions: Completions it stands for: the request's n until its prompt is computed, then 1.
        rank: The policy's sort key; the smallest runs first.
        table: Its block table while it runs, else None.
        num_cached_tokens: Prompt tokens whose K and V came from the prefix cache at the first admission.
        num_preemptions: Times it lost its blocks.
        block_keys: The prefix cache's keys of its full blocks, kept while it waits (see `KVAllocator.open`).
    """

    seq_id: int
    request: Request
    index: int
    arrival_order: int
    token_ids: list[int]
    num_prompt_tokens: int
    max_num_tokens: int
    stop_token_ids: frozenset[int]
    num_completions: int = 1
    rank: tuple[Any, ...] = ()
    status: SequenceStatus = field(default=SequenceStatus.WAITING, init=False)
    num_computed_tokens: int = 0
    table: KVTable | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    block_keys: list[BlockKey] = field(default_factory=list, init=False)

    @classmethod
    def of_request(cls, seq_id: int, request: Request, max_model_len: int) -> "Sequence":
        """Completion 0 of a request, standing for all of them until it forks."""
        params, num_prompt_tokens = request.sampling_params, len(request.prompt_token_ids)
        eos_token_ids = frozenset() if params.ignore_eos else request.eos_token_ids
        return cls(
            seq_id=seq_id,
            request=request,
            index=0,
            arrival_order=seq_id,
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=num_prompt_tokens,
            max_num_tokens=min(num_prompt_tokens + params.max_tokens, max_model_len),
            stop_token_ids=eos_token_ids.union(params.stop_token_ids),
            num_completions=params.n,
        )

    def fork(self, seq_id: int, index: int) -> "Sequence":
        """Another completion of the same request, with the same tokens so far and without blocks."""
        token_ids = list(self.token_ids)
        return replace(self, seq_id=seq_id, index=index, token_ids=token_ids, num_completions=1, table=None)

    @property
    def open_table(self) -> KVTable:
        """The table of a running sequence."""
        assert self.table is not None
        return self.table

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def lookup_ids(self) -> list[int]:
        """The tokens that are looked up in the prefix cache at admission: none as long as the log-probabilities of the
        prompt are to be computed, because they take every position of the prompt."""
        is_scored = self.request.sampling_params.prompt_logprobs is not None
        return [] if is_scored and len(self.token_ids) == self.num_prompt_tokens else self.token_ids

    @property
    def is_decoding(self) -> bool:
        """One token to compute, and it is an output token."""
        num_tokens = len(self.token_ids)
        return num_tokens - self.num_computed_tokens == 1 and num_tokens > self.num_prompt_tokens
