"""One step being planned: the moves a policy has, and the rules they keep."""

import math
from collections.abc import Callable, Iterator
from typing import final

from twophase.cache.block_table import BlockTable
from twophase.core.errors import OutOfBlocksError, PolicyError
from twophase.core.plan import BlockCopy, BlockSwap, ScheduledChunk, StepPlan
from twophase.scheduling.config import SchedulerConfig
from twophase.scheduling.roster import Roster, SequenceFault, blamed_on, block_swaps
from twophase.scheduling.sequence import Sequence


@final
class StepBuilder:
    """The `Step` of policy.py. Whatever a policy does with it, the state it leaves is legal.

    - Admission takes blocks for all the tokens a sequence has, so that a prefill, once begun, needs no more; and it
      leaves a free block for each sequence that may still grow (see `_room_for`), so that nobody is preempted
      right after someone was let in.
    - When a decode finds no block, the running sequence of worst rank that is not planned yet loses its blocks.
    - With a sliding window a prefill takes its blocks chunk by chunk, for it frees some as it goes. What it may still
      need for the smallest chunks (`CacheManager.num_blocks_to_come`) is *promised* to it: neither an admission nor a
      decode takes it. Promised blocks are as good as taken, so a prefill, once begun, still needs no more, and what
      keeps the rest from waiting in a ring holds as it did: there are at least as many free blocks as promised ones,
      and the sequence of best rank always goes on, at worst with all the others preempted. A chunk is larger than its
      promise if blocks are free that nobody was promised and no admission would have to leave.

    Attributes:
        uncopied: Sequences that this step gives block copies to do: if the step is dropped, what they hold is unknown.
        swapped_in, swapped_out: Likewise for moves from and to host memory.
    """

    def __init__(
        self, config: SchedulerConfig, roster: Roster, now_s: int | float = 0.0, num_stalled_steps: int = 0
    ) -> None:
        self.now_s = now_s
        self.num_stalled_steps = num_stalled_steps
        self.wake_s: int | float | None = None
        self.uncopied: list[Sequence] = []
        self.swapped_in: list[Sequence] = []
        self.swapped_out: list[Sequence] = []
        self._config = config
        self._roster = roster
        self._cache = roster.cache
        self._max_tokens = config.max_num_batched_tokens
        self._num_tokens = 0  # planned
        self._num_seats_taken = roster.num_seats_taken
        self._num_reserved: int | None = None  # counted when somebody wants to come in
        self._num_promised: int | None = 0 if self._cache.window is None else None  # counted when asked for
        self._decodes: list[ScheduledChunk] = []
        self._prefills: list[ScheduledChunk] = []
        self._planned: set[int] = set()
        self._preempted: set[int] = set()
        self._copies: list[BlockCopy] = []
        self._swaps_out: list[BlockSwap] = []
        self._swaps_in: list[BlockSwap] = []

    # -- what a policy sees

    @property
    def budget(self) -> int:
        return max(0, self._max_tokens - self._num_tokens)

    @property
    def num_spare_blocks(self) -> int:
        """Free blocks that no running prefill was promised."""
        return self._cache.num_free_blocks - self._num_promised_now()

    @property
    def num_free_seats(self) -> int:
        return self._config.max_num_seqs - self._num_seats_taken

    @property
    def num_waiting(self) -> int:
        return len(self._roster.waiting)

    @property
    def is_empty(self) -> bool:
        return not self._planned

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._roster.running)

    @property
    def waiting(self) -> Iterator[Sequence]:
        position = 0
        while position < len(self._roster.waiting):
            sequence = self._roster.waiting[position]
            yield sequence
            position = self._roster.waiting.bisect_key_right(sequence.rank)

    # -- what a policy can do

    def decode(self, sequence: Sequence) -> bool:
        table = self._table_of(sequence)
        if table is None or not self.budget:
            return False
        if not sequence.is_decoding:
            raise PolicyError(
                f"a policy planned a decode of sequence {sequence.seq_id}, which is still in its prefill."
            )
        token_ids = sequence.token_ids
        while True:
            try:
                if self._num_promised != 0:
                    self._require_unpromised(table, len(token_ids))
                new_copies = self._cache.grow(table, len(token_ids))
                break
            except OutOfBlocksError:
                victim = self._worst_unplanned()
                self._preempt(victim)
                if victim is sequence:
                    return False
            except Exception as error:
                raise SequenceFault(sequence.seq_id, error) from error
        self._note_copies(sequence, new_copies)
        start = sequence.num_computed_tokens
        self._decodes.append(ScheduledChunk(sequence.seq_id, token_ids[start:], start, table.block_ids, 1))
        self._planned.add(sequence.seq_id)
        self._num_tokens += 1
        return True

    def prefill(self, sequence: Sequence, max_tokens: int | None = None) -> int:
        table = self._table_of(sequence)
        if table is None:
            return 0
        if sequence.is_decoding:
            raise PolicyError(f"a policy planned a prefill of sequence {sequence.seq_id}, which decodes already.")
        return self._plan_chunk(sequence, table, max_tokens)

    def admit(self, sequence: Sequence, max_tokens: int | None = None, *, whole: bool = False) -> int:
        self._require_unplanned(sequence)
        if sequence.table is not None:
            raise PolicyError(f"a policy let in sequence {sequence.seq_id}, which is running already.")
        has_seats = sequence.num_completions <= self.num_free_seats
        if not has_seats or not self.budget or (max_tokens is not None and max_tokens < 1):
            return 0
        with blamed_on(sequence):
            table = self._open(sequence, lambda table: self._fits(sequence, table, whole), self._roster.start)
        self._recount_promises()
        if table is None:
            return 0
        self._num_seats_taken += sequence.num_completions
        if self._num_reserved is not None:
            self._num_reserved += self._num_growing(sequence)
        self._swap_in(sequence, table)
        return self._plan_chunk(sequence, table, max_tokens)

    def reserve(self, sequence: Sequence) -> bool:
        """Blocks and a seat for an expected sequence, if there is room; not a policy's move."""
        if sequence.num_completions > self.num_free_seats:
            return False
        with blamed_on(sequence):
            table = self._open(sequence, lambda table: self._has_whole_room(sequence, table), self._roster.seat)
        return table is not None

    def limit(self, max_tokens: int) -> None:
        self._max_tokens = min(self._max_tokens, max_tokens)

    def wait_until(self, when_s: int | float) -> None:
        if not self.now_s < when_s < math.inf:
            raise PolicyError(f"a policy can wait for a later time; it is {self.now_s} s, and it asked for {when_s}.")
        self.wake_s = when_s

    # -- the rules

    def _table_of(self, sequence: Sequence) -> BlockTable | None:
        """The blocks of a running sequence that is not planned yet; None if it lost them in this step."""
        self._require_unplanned(sequence)
        if sequence.table is None and sequence.seq_id not in self._preempted:
            raise PolicyError(f"a policy planned sequence {sequence.seq_id}, which is not running: let it in first.")
        return sequence.table

    def _require_unplanned(self, sequence: Sequence) -> None:
        if sequence.seq_id in self._planned:
            raise PolicyError(f"a policy planned sequence {sequence.seq_id} twice in one step; once is the most.")

    def _worst_unplanned(self) -> Sequence:
        return next(sequence for sequence in reversed(self._roster.running) if sequence.seq_id not in self._planned)

    def _preempt(self, victim: Sequence) -> None:
        moves = self._roster.preempt(victim, swap=self._config.preemption == "swap")
        if moves:
            self._swaps_out += moves
            self.swapped_out.append(victim)
        self._preempted.add(victim.seq_id)
        self._num_seats_taken -= victim.num_completions
        self._num_reserved = None
        self._recount_promises()

    def _plan_chunk(self, sequence: Sequence, table: BlockTable, max_tokens: int | None) -> int:
        """The next chunk of a prefill; returns its tokens."""
        start = sequence.num_computed_tokens
        num_tokens = min(sequence.num_uncomputed_tokens, self.budget)
        if max_tokens is not None:
            num_tokens = max(0, min(num_tokens, max_tokens))
        if self._cache.window is not None and num_tokens:
            with blamed_on(sequence):
                num_tokens = self._grow_for_chunk(sequence, table, num_tokens)
        if num_tokens:
            is_last = num_tokens == sequence.num_uncomputed_tokens
            token_ids = sequence.token_ids[start : start + num_tokens]
            num_samples = sequence.num_completions if is_last else 0
            self._prefills.append(ScheduledChunk(sequence.seq_id, token_ids, start, table.block_ids, num_samples))
            self._planned.add(sequence.seq_id)
            self._num_tokens += num_tokens
        return num_tokens

    def _note_copies(self, sequence: Sequence, new_copies: tuple[BlockCopy, ...]) -> None:
        if new_copies:
            self._copies += new_copies
            self.uncopied.append(sequence)

    # -- admission

    def _open(
        self,
        sequence: Sequence,
        has_room: Callable[[BlockTable], bool],
        start: Callable[[Sequence, BlockTable], None],
    ) -> BlockTable | None:
        """Give a newcomer its blocks, hits and new ones; None, and nothing changed, if it doesn't fit."""
        is_first_time = sequence.num_preemptions == 0
        copies: tuple[BlockCopy, ...] = ()
        table = self._cache.open(sequence.token_ids, sequence.request.cache_salt, count_in_stats=is_first_time)
        try:
            if self._cache.window is not None:
                table = self._without_short_hit(sequence, table)
                self._recount_promises()  # others' blocks that were hit do not come back to them
            fits = has_room(table)
            if not fits:
                self._cache.close(table)
            elif self._cache.window is None:
                copies = self._cache.grow(table, len(sequence.token_ids))
            elif sequence.num_swapped_tokens > table.num_tokens:
                self._cache.restore(table, sequence.num_swapped_tokens)
        except BaseException:
            self._cache.close(table)
            raise
        if not fits:
            return None
        self._note_copies(sequence, copies)
        start(sequence, table)
        return table

    def _fits(self, sequence: Sequence, table: BlockTable, whole: bool) -> bool:
        """Whether the free blocks and, when a prefill must be done in one step, the budget are enough."""
        num_tokens = len(sequence.token_ids)
        # In chunks, as configured; so is one that outgrew the budget or, with a window, the pool: it could never go on.
        is_too_long = num_tokens > min(self._max_tokens, self._num_slots)
        may_split = is_too_long or (self._config.enable_chunked_prefill and not whole)
        num_uncomputed = num_tokens - max(table.num_cached_tokens, sequence.num_swapped_tokens)
        if num_uncomputed > self.budget and not may_split:
            return False
        if self._cache.window is None or not may_split:
            return self._has_whole_room(sequence, table)
        return self._has_room(sequence, self._cache.num_blocks_to_come(table, num_tokens))

    def _has_whole_room(self, sequence: Sequence, table: BlockTable) -> bool:
        return self._has_room(sequence, self._cache.num_blocks_needed(table, len(sequence.token_ids)))

    def _has_room(self, sequence: Sequence, num_needed: int) -> bool:
        return num_needed + self._room_for(sequence) <= self.num_spare_blocks

    def _room_for(self, sequence: Sequence) -> int:
        """Blocks a newcomer must leave free: one for each sequence that may outgrow its last block, so that none is
        preempted within the next block_size steps, and the watermark. Alone, it need not leave any: the door saw to it
        that the pool is large enough for one."""
        is_running = sequence.table is not None
        if len(self._roster.running) == is_running and not self._roster.arriving:
            return 0
        num_kept = math.ceil(self._config.watermark * self._cache.num_blocks)
        if self._config.reserve_growth:
            num_kept += self._num_growing_now() + (0 if is_running else self._num_growing(sequence))
        return num_kept

    def _num_growing_now(self) -> int:
        if self._num_reserved is None:
            self._num_reserved = sum(map(self._num_growing, (*self._roster.running, *self._roster.arriving)))
        return self._num_reserved

    def _num_growing(self, sequence: Sequence) -> int:
        """Completions of a sequence that may still need blocks beyond those that it has, or takes when it is let in."""
        block_size = self._cache.block_size
        num_slots = -(-len(sequence.token_ids) // block_size) * block_size
        may_grow = sequence.num_completions > 1 or sequence.max_num_tokens - 1 > num_slots
        if not may_grow and sequence.table is not None and sequence.is_decoding:
            # It grows in this step, if its decode is not planned yet: into a new block, or a copy of a shared one.
            may_grow = self._cache.num_blocks_needed(sequence.table, len(sequence.token_ids)) > 0
        return sequence.num_completions if may_grow else 0

    def _swap_in(self, sequence: Sequence, table: BlockTable) -> None:
        """Bring back what the prefix cache did not find. The host's blocks stay taken until the step is confirmed."""
        if sequence.num_swapped_tokens > table.num_cached_tokens:
            num_hit = table.num_cached_tokens // self._cache.block_size
            self._swaps_in += block_swaps(table.block_ids[num_hit:], sequence.host_blocks[num_hit:])
            sequence.num_computed_tokens = sequence.num_swapped_tokens
        if sequence.host_blocks:
            self.swapped_in.append(sequence)

    # -- with a sliding window

    @property
    def _num_slots(self) -> int | float:
        """Of the pool, if a sequence may be longer than that."""
        return math.inf if self._cache.window is None else self._cache.num_blocks * self._cache.block_size

    def _without_short_hit(self, sequence: Sequence, table: BlockTable) -> BlockTable:
        """What comes back from host memory comes back whole, into an empty table: beside the blocks of a hit that ends
        before it, those that it sees might not fit into the pool."""
        if table.num_tokens >= sequence.num_swapped_tokens:
            return table
        self._cache.close(table)
        return self._cache.open((), sequence.request.cache_salt, count_in_stats=False)

    def _recount_promises(self) -> None:
        if self._cache.window is not None:
            self._num_promised = None

    def _num_promised_now(self) -> int:
        """Blocks that the running prefills may still need."""
        if self._num_promised is None:
            prefills = [sequence for sequence in self._roster.running if not sequence.is_decoding]
            self._num_promised = sum(map(self._num_promised_to, prefills))
        return self._num_promised

    def _num_promised_to(self, sequence: Sequence) -> int:
        assert sequence.table is not None
        num_tokens = max(len(sequence.token_ids), sequence.table.num_tokens)
        return self._cache.num_blocks_to_come(sequence.table, num_tokens)

    def _require_unpromised(self, table: BlockTable, num_tokens: int) -> None:
        """Raises OutOfBlocksError if a decode would take a block that is promised to a prefill."""
        if self._cache.num_blocks_needed(table, num_tokens) > self.num_spare_blocks:
            raise OutOfBlocksError(f"All but {self.num_spare_blocks} free blocks are promised to running prefills.")

    def _grow_for_chunk(self, sequence: Sequence, table: BlockTable, num_tokens: int) -> int:
        """Blocks for the next chunk of a prefill; returns how many of `num_tokens` they hold."""
        start = sequence.num_computed_tokens
        num_own = self._num_promised_to(sequence)
        num_of_others = self._num_promised_now() - (0 if sequence.is_decoding else num_own)
        num_blocks = max(num_own, self._cache.num_free_blocks - num_of_others - self._room_for(sequence))
        end = min(start + num_tokens, self._cache.num_tokens_within(table, num_blocks))
        self._note_copies(sequence, self._cache.grow(table, max(end, table.num_tokens)))
        self._recount_promises()
        return end - start

    # -- the outcome

    def plan(self, preempted: tuple[int, ...], landed: tuple[int, ...]) -> StepPlan:
        return StepPlan(
            chunks=(*self._decodes, *self._prefills),
            num_decodes=len(self._decodes),
            num_tokens=self._num_tokens,
            copies=tuple(self._copies),
            preempted=preempted,
            landed=landed,
            swaps_out=tuple(self._swaps_out),
            swaps_in=tuple(self._swaps_in),
            wake_s=None if self._planned else self.wake_s,
        )

    @property
    def lets_decodes_stand(self) -> bool:
        """Whether sequences are ready to decode, and none does."""
        return not self._decodes and any(s.is_decoding and s.seq_id not in self._planned for s in self._roster.running)
