"""The planner: the moves with which a policy fills a step, and the invariants that they keep."""

import bisect
import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import Any, final

from sortedcontainers import SortedKeyList

from twophase.cache.allocator import KVAllocator, KVTable
from twophase.core.errors import OutOfBlocksError, PolicyError
from twophase.core.plan import BlockCopy, ScheduledChunk, StepPlan
from twophase.doors import feature
from twophase.scheduling.limits import AdmissionRule, SchedulerConfig
from twophase.scheduling.sequence import Sequence, SequenceStatus

_ORDER = attrgetter("rank", "seq_id")  # equal ranks go by seq_id


@final
class Planner:
    """One step being planned, as a policy sees it, and the queues between steps.

    A move that does not fit into the free blocks, `max_num_seqs` (each completion counts) or the token budget plans
    fewer tokens, or nothing. An invalid move (a sequence twice, a decode of an unfinished prefill) raises PolicyError.

    Invariants, whatever a policy asks for, also when a step is dropped or a method raises:

    - A running sequence has a table; its completions count towards `max_num_seqs`. A waiting sequence has no table.
    - An admission reserves blocks for all tokens of the sequence: a prefill, once begun, never waits for a block.
    - An admission beside running sequences leaves free the watermark and the headroom of each (`AdmissionRule`).
    - A decode that finds no free block preempts the running sequence of worst rank that is not planned yet.
    - Block copies (copy-on-write) and loads from the KV tier are done while the step is planned.

    Attributes:
        now_s: The engine's clock.
        num_stalled_steps: Steps in a row without any decode although a sequence was ready to decode.
        policy: The `Policy`, whose `plan` is given this object.
        copy_blocks: Copies whole blocks of the K/V cache: the runner's method (`Scheduler.connect`).
        admission: The admission rule; the scheduler reports ends to it.
    """

    def __init__(self, config: SchedulerConfig, cache: KVAllocator, policy: Any) -> None:
        self.config = config
        self.cache = cache
        self.policy = policy
        self.copy_blocks: Callable[[Seq[BlockCopy]], None] = lambda copies: None
        make = AdmissionRule if config.admission == "optimistic" else feature("admission").by_lengths
        self.admission: AdmissionRule = make(config, cache)
        self.num_stalled_steps = 0
        self._running: list[Sequence] = []  # by rank
        self._waiting: SortedKeyList = SortedKeyList(key=_ORDER)
        self._failed: dict[int, Exception] = {}  # by seq_id: why a running sequence cannot continue
        self._preempted: list[Sequence] = []  # not yet reported in a plan
        self._copies: list[BlockCopy] = []  # this and the next two: since the last completed step
        self._loaded: list[int] = []
        self._num_offloaded_before = 0
        self._begin(0.0)

    def _begin(self, now_s: int | float) -> None:
        """Start a new step. If the previous step was dropped, take back the room that its drafts got."""
        self.now_s = now_s
        self._wake_s: int | float | None = None
        self._max_tokens = self.config.max_num_batched_tokens
        self._num_tokens = 0  # planned
        self._decodes: list[ScheduledChunk] = []
        self._prefills: list[ScheduledChunk] = []
        self._planned: set[Sequence] = set()
        for sequence in self._running:
            if sequence.open_table.num_tokens > len(sequence.token_ids):
                self.cache.truncate(sequence.open_table, len(sequence.token_ids))

    # -- what a policy sees

    @property
    def budget(self) -> int:
        """Tokens that this step can still compute."""
        return max(0, self._max_tokens - self._num_tokens)

    @property
    def num_free_seqs(self) -> int:
        """Completions that may still be admitted."""
        return self.config.max_num_seqs - sum(each.num_completions for each in self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is planned yet."""
        return not self._planned

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The running sequences, best rank first."""
        return tuple(self._running)

    @property
    def waiting(self) -> Iterator[Sequence]:
        """The waiting sequences, best rank first; sequences admitted during the loop are skipped."""
        position = 0
        while position < len(self._waiting):
            sequence = self._waiting[position]
            yield sequence
            position = self._waiting.bisect_key_right(_ORDER(sequence))

    # -- what a policy can do

    def decode(self, sequence: Sequence) -> bool:
        """Plan a decoding sequence's next token; while no block is free, preempt the unplanned running sequence of
        worst rank. False if that was this sequence, if the budget is used up, or if a block could not be copied."""
        if not self._is_running(sequence) or not self.budget or sequence.seq_id in self._failed:
            return False
        if not sequence.is_decoding:
            raise PolicyError(f"a policy planned a decode of sequence {sequence.seq_id}, which is still in prefill.")
        table, num_tokens = sequence.open_table, len(sequence.token_ids)
        while True:
            try:
                copies = self.cache.grow(table, num_tokens)
                break
            except OutOfBlocksError:
                victim = next(each for each in reversed(self._running) if each not in self._planned)
                self._preempt(victim)
                if victim is sequence:
                    return False
        if copies:
            try:
                self.copy_blocks(copies)
            except Exception as error:  # the sequence's last block has no valid contents
                self._failed[sequence.seq_id] = error
                return False
            self._copies += copies
        token_ids = sequence.token_ids[-1:]
        self._decodes.append(ScheduledChunk(sequence.seq_id, token_ids, num_tokens - 1, table.block_ids, 1))
        self._planned.add(sequence)
        self._num_tokens += 1
        return True

    def prefill(self, sequence: Sequence, max_tokens: int | None = None) -> int:
        """Plan a chunk of a running prefill; returns its tokens, 0 if it was preempted in this step."""
        if not self._is_running(sequence):
            return 0
        if sequence.is_decoding:
            raise PolicyError(f"a policy planned a prefill of sequence {sequence.seq_id}, which decodes already.")
        return self._plan_chunk(sequence, max_tokens)

    def admit(self, sequence: Sequence, max_tokens: int | None = None, *, whole: bool = False) -> int:
        """Admit a waiting sequence and plan its first chunk, at most `max_tokens`; returns the number of its tokens, 0
        for a refusal. `whole`: the whole prompt in this step or no token of it (except a prompt that never fits)."""
        if sequence.table is not None:
            raise PolicyError(f"a policy admitted sequence {sequence.seq_id}, which is running already.")
        # A sequence that outgrew the budget or, with a window, the pool could never be computed in one piece.
        is_too_long = len(sequence.token_ids) > min(self._max_tokens, self.num_slots)
        may_split = is_too_long or (self.config.enable_chunked_prefill and not whole)
        if (max_tokens is not None and max_tokens < 1) or not self.budget:
            return 0
        if sequence.num_completions > self.num_free_seqs or not self._open(sequence, may_split):
            return 0
        self._waiting.remove(sequence)
        self._start(sequence)
        return self._plan_chunk(sequence, max_tokens if may_split else None)

    def limit(self, max_tokens: int) -> None:
        """From here on, plan no more than `max_tokens` tokens for this step, drafts included. Chunks planned before
        stay, so that decodes are not held back."""
        self._max_tokens = min(self._max_tokens, max_tokens)

    def wait_until(self, when_s: int | float) -> None:
        """If nothing is planned, the policy is not asked again before `when_s`, unless a request arrives."""
        if not self.now_s < when_s < math.inf:
            raise PolicyError(f"a policy can wait for a later time; it is {self.now_s} s, and it asked for {when_s}.")
        self._wake_s = when_s

    # -- the rules

    @property
    def num_slots(self) -> int:
        """The most tokens that can have a slot at once."""
        return self.cache.num_blocks // self.cache.num_blocks_at_most(1) * self.cache.block_size

    def _is_running(self, sequence: Sequence) -> bool:
        """False if the sequence was preempted in this step. Raises PolicyError if it is planned already, or waits."""
        if sequence in self._planned:
            raise PolicyError(f"a policy planned sequence {sequence.seq_id} twice in one step; once is the most.")
        if sequence.table is None and sequence not in self._preempted:
            raise PolicyError(f"a policy planned sequence {sequence.seq_id}, which is not running: admit it first.")
        return sequence.table is not None

    def _open(self, sequence: Sequence, may_split: bool) -> bool:
        """Open a waiting sequence's table and reserve blocks for all its tokens; False if they do not fit."""
        num_tokens, is_first_time = len(sequence.token_ids), sequence.num_preemptions == 0
        table = self.cache.open(sequence.lookup_ids, sequence.request.cache_salt, is_first_time, sequence.block_keys)
        num_spare = self._num_spare_blocks(sequence, table)
        if may_split:
            fits = self.cache.num_blocks_needed(table, num_tokens) <= num_spare
        else:
            num_to_compute = num_tokens - table.num_cached_tokens - table.num_offered_tokens
            fits = num_to_compute <= self.budget and self.cache.room(table, num_tokens, num_spare) == num_tokens
        if not fits:
            self.cache.close(table)
            return False
        self.cache.reserve(table, num_tokens)
        self._loaded += self.cache.load(table, sequence.token_ids)
        sequence.table, sequence.block_keys = table, []
        sequence.num_computed_tokens = table.num_cached_tokens
        if is_first_time:
            sequence.num_cached_tokens = table.num_cached_tokens
        return True

    def _num_spare_blocks(self, sequence: Sequence, table: KVTable) -> int:
        """Free blocks that a sequence may take for its prompt: if no other runs, all: `check_request` made sure."""
        tables = {each: each.open_table for each in self._running} | {sequence: table}
        if len(tables) == 1:
            return self.cache.num_free_blocks
        num_headroom = sum(self.admission.headroom(*each) for each in tables.items())
        num_watermark = math.ceil(self.config.watermark * self.cache.num_blocks)
        return self.cache.num_free_blocks - num_headroom - num_watermark

    def _plan_chunk(self, sequence: Sequence, max_tokens: int | None) -> int:
        """Plan the next chunk of a prefill, in reserved blocks and in spare blocks; returns its number of tokens."""
        num_tokens = min(sequence.num_uncomputed_tokens, self.budget)
        if max_tokens is not None:
            num_tokens = max(0, min(num_tokens, max_tokens))
        table, start = sequence.open_table, sequence.num_computed_tokens
        end = start + num_tokens
        if end > table.num_tokens:
            end = self.cache.room(table, end, max(0, self._num_spare_blocks(sequence, table)))
            self.cache.grow(table, end)
        if end > start:
            num_samples = sequence.num_completions if end == len(sequence.token_ids) else 0
            token_ids = sequence.token_ids[start:end]
            self._prefills.append(ScheduledChunk(sequence.seq_id, token_ids, start, table.block_ids, num_samples))
            self._planned.add(sequence)
            self._num_tokens += end - start
        return end - start

    def _start(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.RUNNING
        bisect.insort(self._running, sequence, key=_ORDER)

    def _preempt(self, victim: Sequence) -> None:
        """Free a running sequence's blocks, and queue it again."""
        self.remove(victim)
        victim.status = SequenceStatus.PREEMPTED
        victim.num_preemptions += 1
        self._preempted.append(victim)
        self.add(victim)
        self.policy.note_waiting(victim)

    # -- what the scheduler asks for

    def add(self, sequence: Sequence) -> None:
        self._waiting.add(sequence)

    def plan(self, now_s: int | float) -> StepPlan:
        """Plan a step. Raises PolicyError."""
        self._begin(now_s)
        if self._running or self._waiting:
            self.policy.plan(self)
        if (self._running or self._waiting) and self.is_empty and not self._failed and self._wake_s is None:
            raise PolicyError(
                f"{self.policy} planned nothing, and waits for nothing, though {len(self._running)} sequences are "
                f"running and {self.num_waiting} waiting: it would hang."
            )
        preempted, self._preempted = self._preempted, []
        return StepPlan(
            chunks=(*self._decodes, *self._prefills),
            num_decodes=len(self._decodes),
            num_tokens=self._num_tokens,
            copies=tuple(self._copies),
            preempted=tuple(each.seq_id for each in preempted if each.status is not SequenceStatus.FINISHED),
            loaded=tuple(self._loaded),
            num_offloaded=self.cache.num_offloaded - self._num_offloaded_before,
            failed=dict(self._failed),
            wake_s=self._wake_s if self.is_empty else None,
        )

    def commit(self) -> None:
        """Count the latest step as completed. Called before its sequences change."""
        stalls = not self._decodes and any(each.is_decoding and each not in self._planned for each in self._running)
        self.num_stalled_steps = self.num_stalled_steps + 1 if stalls else 0
        self._copies, self._loaded = [], []
        self._num_offloaded_before = self.cache.num_offloaded

    def confirm(self, sequence: Sequence, num_computed: int) -> None:
        """The K and V of a sequence's first `num_computed` tokens are in its blocks: publish the full blocks, and free
        the room of drafts that were rejected or not proposed, but for the next token's."""
        table, sequence.num_computed_tokens = sequence.open_table, num_computed
        if len(sequence.token_ids) == num_computed < table.num_tokens - 1:
            self.cache.truncate(table, num_computed + 1)
        self.cache.publish(table, sequence.token_ids, num_computed)

    def fork(self, sequence: Sequence, forks: Seq[Sequence]) -> None:
        """Give each fork a table that shares the sequence's blocks. Its admission has counted it."""
        for fork in forks:
            fork.table = self.cache.fork(sequence.open_table)
        sequence.num_completions = 1
        for fork in forks:
            self._start(fork)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of its queue, and free the blocks of a running one."""
        if sequence.table is None:
            self._waiting.remove(sequence)
            return
        self.cache.close(sequence.table)
        self._running.remove(sequence)
        self._failed.pop(sequence.seq_id, None)
        sequence.table, sequence.num_computed_tokens = None, 0
