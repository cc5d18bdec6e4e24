"""Continuous batching: which sequences compute which tokens in the next step.

A step is planned by `schedule`, run by the engine, and confirmed by `update`. Nothing that `schedule` does counts as
computed until `update` says so, hence the rule for failures: **whenever `schedule` raised, or a planned step was not
run to its end, drop the plan (fail the culprit, if one is known) and call `schedule` again.** What `schedule` leaves
behind is legal by itself: sequences admitted or preempted, and blocks with room for tokens not yet computed. The one
exception, block copies that a dropped plan may not have done, is healed by the next `schedule`: the sequences that
asked for them are preempted and recomputed.
"""

import bisect
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from operator import attrgetter
from typing import NamedTuple, final

from twophase.cache.block_table import BlockTable
from twophase.cache.manager import CacheManager
from twophase.core.errors import InvalidRequestError, OutOfBlocksError, TwophaseError
from twophase.core.outputs import FinishReason
from twophase.core.plan import BlockCopy, SampledToken, ScheduledChunk, StepPlan
from twophase.core.request import Request
from twophase.scheduling.admission import check_request
from twophase.scheduling.config import SchedulerConfig
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase.scheduling.sequence import Sequence, SequenceStatus
from twophase.scheduling.waiting_queue import WaitingQueue

_RANK = attrgetter("rank")


class SequenceUpdate(NamedTuple):
    """What became of one completion: new tokens, its end, or both.

    Attributes:
        seq_id: Its sequence. Completions that had not forked yet share that of completion 0.
        tokens: New tokens; a stop token is among them.
        finish_reason: None while it goes on.
        stop_reason: The stop token id or string that ended it; None for the model's end-of-text.
        error: What went wrong, when `finish_reason` is 'error'.
    """

    seq_id: int
    request_id: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


class SequenceFault(TwophaseError):
    """Planning `seq_id` raised (see `__cause__`). Nothing is half-done: `fail(seq_id, ...)` and `schedule` again."""

    def __init__(self, seq_id: int, cause: Exception) -> None:
        super().__init__(f"scheduling sequence {seq_id} failed: {type(cause).__name__}: {cause}")
        self.seq_id = seq_id


@final
class Scheduler:
    """Decides what runs; owns every Sequence. Not thread-safe: one engine calls it, between steps.

    Each step: one token of every decoding sequence, then the prefills already begun, then new ones, as the token
    budget, the seats and the blocks allow. So a decode never waits for a prefill, and as the budget is at least the
    number of seats, a prefill always gets a token.

    - Admission takes blocks for all the tokens a sequence has, so that a prefill, once begun, needs no more; and it
      leaves a free block for each sequence that may still grow (see `_admit`), so that nobody is preempted
      right after someone was let in.
    - When a decode finds no block, the running sequence of worst rank loses its blocks and waits again, with its
      output, to be recomputed.

    Attributes:
        sequences: The unfinished ones, by seq_id; read-only to others.
    """

    def __init__(self, config: SchedulerConfig, cache: CacheManager, policy: Policy | None = None) -> None:
        self.config = config
        self.cache = cache
        self.policy: Policy = policy or PriorityPolicy()
        self.sequences: dict[int, Sequence] = {}
        self._seq_ids_of: dict[str, list[int]] = {}  # request id -> its unfinished sequences
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # by rank
        self._next_seq_id = 0
        self._plan: StepPlan | None = None  # handed out, not confirmed
        self._uncopied: list[Sequence] = []  # whose block copies no update has confirmed
        self._preempted: list[int] = []  # not yet told in a plan
        self._refused_head: Sequence | None = None  # did not fit, and nothing happened since that could help

    @property
    def has_unfinished(self) -> bool:
        return bool(self.sequences)

    @property
    def num_waiting(self) -> int:
        """Sequences without blocks, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, request: Request) -> int:
        """Queue a request; returns the seq_id of its completion 0 (the others get theirs when the prompt is done).

        Raises InvalidRequestError, with the numbers, if it could never be served as asked.
        """
        check_request(request, self.config, self.cache.num_blocks, self.cache.block_size)
        if request.request_id in self._seq_ids_of:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use by an unfinished request.")
        sequence = Sequence.of_request(self._next_seq_id, request, self.config.max_model_len)
        sequence.rank = self.policy.rank(sequence)
        self._next_seq_id += 1
        self._register(sequence)
        self._waiting.push(sequence)
        return sequence.seq_id

    def schedule(self) -> StepPlan:
        """Plan the next step; empty only if nothing is unfinished. A plan not confirmed by `update` is dropped.

        Raises SequenceFault if something unforeseen happened to one sequence; see the module's rule.
        """
        self._plan = None
        for sequence in self._uncopied:
            if sequence.status is SequenceStatus.RUNNING:
                self._preempt(sequence)
        self._uncopied = []

        chunks: list[ScheduledChunk] = []
        copies: list[BlockCopy] = []
        prefills = self._plan_decodes(chunks, copies)
        num_decodes = len(chunks)
        budget = self.config.max_num_batched_tokens - num_decodes
        for sequence in prefills:
            budget -= self._plan_prefill(sequence, chunks, budget)
        budget = self._admit(chunks, budget)

        preempted = tuple(seq_id for seq_id in self._preempted if seq_id in self.sequences)
        self._preempted = []
        num_tokens = self.config.max_num_batched_tokens - budget
        self._plan = StepPlan(tuple(chunks), num_decodes, num_tokens, tuple(copies), preempted)
        return self._plan

    def update(self, plan: StepPlan, sampled: Mapping[int, Seq[SampledToken]]) -> list[SequenceUpdate]:
        """Confirm that `plan` ran: append tokens, fork, finish, publish full blocks, free.

        `sampled` has `num_samples` tokens for each chunk that samples; chunks of sequences failed or aborted
        since the plan was made are skipped. An error in one sequence's bookkeeping ends that sequence alone, with
        finish reason 'error'.

        Raises ValueError, and changes nothing, if `plan` is not the latest plan or `sampled` does not match it.
        """
        self._check_sampled(plan, sampled)
        self._plan = None
        self._uncopied = []
        if len(plan.chunks) > plan.num_decodes:
            self._refused_head = None  # a prefill published blocks that the head may hit
        updates: list[SequenceUpdate] = []
        for chunk in plan.chunks:
            sequence = self.sequences.get(chunk.seq_id)
            if sequence is None:
                continue
            try:
                self._confirm(sequence, chunk)
                completions = self._fork(sequence) if chunk.num_samples > 1 else (sequence,)
            except Exception as error:
                updates += self.fail(chunk.seq_id, error)
                continue
            if chunk.num_samples:
                for completion, token in zip(completions, sampled[chunk.seq_id], strict=True):
                    try:
                        updates.append(self._append(completion, token))
                    except Exception as error:
                        updates += self.fail(completion.seq_id, error)
        return updates

    def abort(self, request_id: str) -> list[SequenceUpdate]:
        """End every completion of a request, wherever it stands; nothing happens if it is not unfinished."""
        seq_ids = list(self._seq_ids_of.get(request_id, ()))
        return [update for seq_id in seq_ids for update in self.finish(seq_id, "abort")]

    def fail(self, seq_id: int, error: Exception | str) -> list[SequenceUpdate]:
        """End one sequence with an error."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return self.finish(seq_id, "error", error=text)

    def finish(
        self, seq_id: int, reason: FinishReason, stop_reason: str | int | None = None, *, error: str | None = None
    ) -> list[SequenceUpdate]:
        """End one sequence now and free its blocks; allowed at any time, also between `schedule` and `update`.

        Returns an update for each completion it stood for: n of them if it had not forked yet, none if it is not
        unfinished.
        """
        sequence = self.sequences.get(seq_id)
        if sequence is None:
            return []
        self._retire(sequence)
        indices = range(sequence.index, sequence.index + sequence.num_completions)
        request_id = sequence.request.request_id
        return [SequenceUpdate(seq_id, request_id, index, (), reason, stop_reason, error) for index in indices]

    # -- planning: each method leaves a legal state behind, whatever it raises

    def _plan_decodes(self, chunks: list[ScheduledChunk], copies: list[BlockCopy]) -> list[Sequence]:
        """A token for every decoding sequence, best rank first; returns the running sequences that still prefill.

        Victims come off the end of the running list, at or behind the sequence being planned: a planned one is safe.
        """
        prefills: list[Sequence] = []
        grow = self.cache.grow
        i = 0
        while i < len(self._running):
            sequence = self._running[i]
            if not sequence.is_decoding:
                prefills.append(sequence)
                i += 1
                continue
            token_ids, table = sequence.token_ids, sequence.table
            assert table is not None
            try:
                new_copies = grow(table, len(token_ids))
            except OutOfBlocksError:
                self._preempt(self._running[-1])
                continue  # with the same sequence, unless it was the victim
            except Exception as error:
                raise SequenceFault(sequence.seq_id, error) from error
            if new_copies:
                copies += new_copies
                self._uncopied.append(sequence)
            start = sequence.num_computed_tokens
            chunks.append(ScheduledChunk(sequence.seq_id, token_ids[start:], start, table.block_ids, 1))
            i += 1
        return prefills

    def _plan_prefill(self, sequence: Sequence, chunks: list[ScheduledChunk], budget: int) -> int:
        """The next chunk of a running prefill, at most `budget` tokens; returns how many."""
        assert sequence.table is not None
        start = sequence.num_computed_tokens
        num_tokens = min(sequence.num_uncomputed_tokens, budget)
        if num_tokens:
            is_last = num_tokens == sequence.num_uncomputed_tokens
            token_ids = sequence.token_ids[start : start + num_tokens]
            num_samples = sequence.num_completions if is_last else 0
            chunks.append(ScheduledChunk(sequence.seq_id, token_ids, start, sequence.table.block_ids, num_samples))
        return num_tokens

    def _admit(self, chunks: list[ScheduledChunk], budget: int) -> int:
        """Let waiting sequences in, in order, until one does not fit: nobody overtakes. Returns the budget left.

        Besides its own blocks, a newcomer must leave one for each sequence that may outgrow its last block, so that
        none is preempted within the next block_size steps. Alone, it need not: the door saw to it that the pool is
        large enough for one.
        """
        head = self._waiting.peek()
        num_free_seats = self.config.max_num_seqs - sum(running.num_completions for running in self._running)
        if not budget or head is self._refused_head or num_free_seats == 0:
            return budget
        num_reserved = sum(map(self._num_growing, self._running))
        while budget and head is not None and head.num_completions <= num_free_seats:
            num_reserved += self._num_growing(head)
            with _blamed_on(head):
                if not self._try_start(head, budget, num_reserved if self._running else 0):
                    self._refused_head = head
                    break
            num_free_seats -= head.num_completions
            budget -= self._plan_prefill(head, chunks, budget)
            head = self._waiting.peek()
        return budget

    def _num_growing(self, sequence: Sequence) -> int:
        """Completions of a sequence that may still need blocks beyond those for the tokens it has."""
        block_size = self.cache.block_size
        num_slots = -(-len(sequence.token_ids) // block_size) * block_size
        may_grow = sequence.num_completions > 1 or sequence.max_num_tokens - 1 > num_slots
        return sequence.num_completions if may_grow else 0

    def _try_start(self, sequence: Sequence, budget: int, num_reserved: int) -> bool:
        """Give a waiting sequence its blocks, hits and new ones; False, and nothing changed, if it doesn't fit."""
        is_first_time = sequence.num_preemptions == 0
        table = self.cache.open(sequence.token_ids, sequence.request.cache_salt, count_in_stats=is_first_time)
        try:
            fits = self._fits(sequence, table, budget, num_reserved)
            if fits:
                self.cache.grow(table, len(sequence.token_ids))  # copies nothing: what was hit are full blocks
            else:
                self.cache.close(table)
        except BaseException:
            self.cache.close(table)
            raise
        if fits:
            self._waiting.remove(sequence)
            sequence.become(SequenceStatus.RUNNING)
            sequence.table = table
            sequence.num_computed_tokens = table.num_cached_tokens
            if is_first_time:
                sequence.num_cached_tokens = table.num_cached_tokens
            bisect.insort(self._running, sequence, key=_RANK)
        return fits

    def _fits(self, sequence: Sequence, table: BlockTable, budget: int, num_reserved: int) -> bool:
        """Whether the free blocks and, when a prefill must be done in one step, the budget are enough."""
        num_tokens = len(sequence.token_ids)
        # In chunks, as configured; so is a preempted sequence that outgrew the budget, or it could never go on.
        may_split = self.config.enable_chunked_prefill or num_tokens > self.config.max_num_batched_tokens
        if num_tokens - table.num_cached_tokens > budget and not may_split:
            return False
        return self.cache.num_blocks_needed(table, num_tokens) + num_reserved <= self.cache.num_free_blocks

    def _preempt(self, victim: Sequence) -> None:
        with _blamed_on(victim):
            self._take_blocks(victim)
        victim.become(SequenceStatus.PREEMPTED)
        victim.num_preemptions += 1
        self._waiting.push(victim)
        self._preempted.append(victim.seq_id)

    # -- bookkeeping after a step

    def _check_sampled(self, plan: StepPlan, sampled: Mapping[int, Seq[SampledToken]]) -> None:
        if plan is not self._plan:
            raise ValueError("update() takes the latest plan, once; this one was dropped or confirmed before.")
        for chunk in plan.chunks:
            num_sampled = len(sampled.get(chunk.seq_id, ()))
            if num_sampled != chunk.num_samples and chunk.seq_id in self.sequences:
                raise ValueError(
                    f"sequence {chunk.seq_id} was to get {chunk.num_samples} sampled tokens, got {num_sampled}; "
                    f"fail() it first if its sampling failed."
                )

    def _confirm(self, sequence: Sequence, chunk: ScheduledChunk) -> None:
        """The chunk's K and V are in pages now: its full blocks may be shared."""
        assert sequence.table is not None
        sequence.num_computed_tokens = num_computed = chunk.start + len(chunk.token_ids)
        self.cache.publish(sequence.table, sequence.token_ids, num_computed)

    def _fork(self, sequence: Sequence) -> tuple[Sequence, ...]:
        """The prompt is done: the completions part, sharing its blocks. All of them or, on an error, none."""
        assert sequence.table is not None
        forks: list[Sequence] = []
        try:
            for index in range(1, sequence.num_completions):
                fork = sequence.fork(self._next_seq_id, index)
                fork.rank = self.policy.rank(fork)
                fork.table = self.cache.fork(sequence.table)
                self._next_seq_id += 1
                forks.append(fork)
        except BaseException:
            for fork in forks:
                assert fork.table is not None
                self.cache.close(fork.table)
            raise
        sequence.num_completions = 1
        for fork in forks:
            fork.become(SequenceStatus.RUNNING)
            self._register(fork)
            bisect.insort(self._running, fork, key=_RANK)
        return (sequence, *forks)

    def _append(self, sequence: Sequence, token: SampledToken) -> SequenceUpdate:
        """Append a token; the sequence ends on a stop token, or when it has as many tokens as it may."""
        reason: FinishReason | None = None
        stop_reason = None
        if token.token_id in sequence.stop_token_ids:
            reason = "stop"
            request = sequence.request
            is_eos = token.token_id in request.eos_token_ids and not request.sampling_params.ignore_eos
            stop_reason = None if is_eos else token.token_id
        elif len(sequence.token_ids) + 1 >= sequence.max_num_tokens:
            reason = "length"
        if reason is not None:
            self._retire(sequence)  # first, as it may raise
        sequence.token_ids.append(token.token_id)
        request_id = sequence.request.request_id
        return SequenceUpdate(sequence.seq_id, request_id, sequence.index, (token,), reason, stop_reason)

    # -- state

    def _register(self, sequence: Sequence) -> None:
        self.sequences[sequence.seq_id] = sequence
        self._seq_ids_of.setdefault(sequence.request.request_id, []).append(sequence.seq_id)

    def _retire(self, sequence: Sequence) -> None:
        """Out of the scheduler: blocks freed, nothing remembered."""
        if sequence.table is not None:
            self._take_blocks(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.become(SequenceStatus.FINISHED)
        del self.sequences[sequence.seq_id]
        request_id = sequence.request.request_id
        self._seq_ids_of[request_id].remove(sequence.seq_id)
        if not self._seq_ids_of[request_id]:
            del self._seq_ids_of[request_id]

    def _take_blocks(self, sequence: Sequence) -> None:
        """A running sequence gives its seat and blocks back. If the cache raises, nothing has changed."""
        assert sequence.table is not None
        self.cache.close(sequence.table)
        sequence.table = None
        sequence.num_computed_tokens = 0
        self._running.remove(sequence)
        self._refused_head = None


@contextmanager
def _blamed_on(sequence: Sequence) -> Iterator[None]:
    """Whatever goes wrong inside is this sequence's fault."""
    try:
        yield
    except Exception as error:
        raise SequenceFault(sequence.seq_id, error) from error
