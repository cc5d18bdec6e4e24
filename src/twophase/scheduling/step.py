"""One step being planned: the moves a policy has, and the rules they keep."""

import math
from collections.abc import Callable, Iterator
from typing import final

from twophase.cache.block_table import BlockTable
from twophase.core.errors import OutOfBlocksError, PolicyError
from twophase.core.plan import BlockCopy, BlockSwap, ScheduledChunk, StepPlan
from twophase.scheduling.config import SchedulerConfig
from twophase.scheduling.roster import Roster, SequenceFault, blamed_on
from twophase.scheduling.sequence import Sequence


@final
class StepBuilder:
    """The `Step` of policy.py. Whatever a policy does with it, the state it leaves is legal.

    - Admission takes blocks for all the tokens a sequence has, so that a prefill, once begun, needs no more; and it
      leaves a free block for each sequence that may still grow (see `_room_for`), so that nobody is preempted
      right after someone was let in.
    - When a decode finds no block, the running sequence of worst rank that is not planned yet loses its blocks.

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
        self._budget = config.max_num_batched_tokens
        self._num_seats_taken = roster.num_seats_taken
        self._num_reserved: int | None = None  # counted when somebody wants to come in
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
        return self._budget

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
        if table is None or not self._budget:
            return False
        if not sequence.is_decoding:
            raise PolicyError(
                f"a policy planned a decode of sequence {sequence.seq_id}, which is still in its prefill."
            )
        token_ids = sequence.token_ids
        while True:
            try:
                new_copies = self._cache.grow(table, len(token_ids))
                break
            except OutOfBlocksError:
                victim = self._worst_unplanned()
                self._preempt(victim)
                if victim is sequence:
                    return False
            except Exception as error:
                raise SequenceFault(sequence.seq_id, error) from error
        if new_copies:
            self._copies += new_copies
            self.uncopied.append(sequence)
        start = sequence.num_computed_tokens
        self._decodes.append(ScheduledChunk(sequence.seq_id, token_ids[start:], start, table.block_ids, 1))
        self._planned.add(sequence.seq_id)
        self._budget -= 1
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
        is_hopeless = sequence is self._roster.refused_head or sequence.num_completions > self.num_free_seats
        if is_hopeless or not self._budget or (max_tokens is not None and max_tokens < 1):
            return 0
        with blamed_on(sequence):
            table = self._open(sequence, lambda table: self._fits(sequence, table, whole), self._roster.start)
        if table is None:
            self._roster.refused_head = sequence
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
            table = self._open(sequence, lambda table: self._has_room(sequence, table), self._roster.seat)
        return table is not None

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

    def _plan_chunk(self, sequence: Sequence, table: BlockTable, max_tokens: int | None) -> int:
        """The next chunk of a prefill; returns its tokens."""
        start = sequence.num_computed_tokens
        num_tokens = min(sequence.num_uncomputed_tokens, self._budget)
        if max_tokens is not None:
            num_tokens = max(0, min(num_tokens, max_tokens))
        if num_tokens:
            is_last = num_tokens == sequence.num_uncomputed_tokens
            token_ids = sequence.token_ids[start : start + num_tokens]
            num_samples = sequence.num_completions if is_last else 0
            self._prefills.append(ScheduledChunk(sequence.seq_id, token_ids, start, table.block_ids, num_samples))
            self._planned.add(sequence.seq_id)
            self._budget -= num_tokens
        return num_tokens

    # -- admission

    def _open(
        self,
        sequence: Sequence,
        has_room: Callable[[BlockTable], bool],
        start: Callable[[Sequence, BlockTable], None],
    ) -> BlockTable | None:
        """Give a newcomer its blocks, hits and new ones; None, and nothing changed, if it doesn't fit."""
        is_first_time = sequence.num_preemptions == 0
        table = self._cache.open(sequence.token_ids, sequence.request.cache_salt, count_in_stats=is_first_time)
        try:
            fits = has_room(table)
            if fits:
                self._cache.grow(table, len(sequence.token_ids))  # copies nothing: what was hit are full blocks
            else:
                self._cache.close(table)
        except BaseException:
            self._cache.close(table)
            raise
        if not fits:
            return None
        start(sequence, table)
        return table

    def _fits(self, sequence: Sequence, table: BlockTable, whole: bool) -> bool:
        """Whether the free blocks and, when a prefill must be done in one step, the budget are enough."""
        num_tokens = len(sequence.token_ids)
        # In chunks, as configured; so is a preempted sequence that outgrew the budget, or it could never go on.
        is_too_long = num_tokens > self._config.max_num_batched_tokens
        may_split = is_too_long or (self._config.enable_chunked_prefill and not whole)
        num_uncomputed = num_tokens - max(table.num_cached_tokens, sequence.num_swapped_tokens)
        if num_uncomputed > self._budget and not may_split:
            return False
        return self._has_room(sequence, table)

    def _has_room(self, sequence: Sequence, table: BlockTable) -> bool:
        num_needed = self._cache.num_blocks_needed(table, len(sequence.token_ids))
        return num_needed + self._room_for(sequence) <= self._cache.num_free_blocks

    def _room_for(self, sequence: Sequence) -> int:
        """Blocks a newcomer must leave free: one for each sequence that may outgrow its last block, so that none is
        preempted within the next block_size steps, and the watermark. Alone, it need not leave any: the door saw to it
        that the pool is large enough for one."""
        if not self._roster.running and not self._roster.arriving:
            return 0
        num_kept = math.ceil(self._config.watermark * self._cache.num_blocks)
        if self._config.reserve_growth:
            num_kept += self._num_growing_now() + self._num_growing(sequence)
        return num_kept

    def _num_growing_now(self) -> int:
        if self._num_reserved is None:
            self._num_reserved = sum(map(self._num_growing, (*self._roster.running, *self._roster.arriving)))
        return self._num_reserved

    def _num_growing(self, sequence: Sequence) -> int:
        """Completions of a sequence that may still need blocks beyond those for the tokens it has."""
        block_size = self._cache.block_size
        num_slots = -(-len(sequence.token_ids) // block_size) * block_size
        may_grow = sequence.num_completions > 1 or sequence.max_num_tokens - 1 > num_slots
        return sequence.num_completions if may_grow else 0

    def _swap_in(self, sequence: Sequence, table: BlockTable) -> None:
        """Bring back what the prefix cache did not find. The host's blocks stay taken until the step is confirmed."""
        num_hit = len(table.block_ids[: table.num_cached_tokens // self._cache.block_size])
        if len(sequence.host_blocks) > num_hit:
            self._swaps_in += map(BlockSwap, table.block_ids[num_hit:], sequence.host_blocks[num_hit:])
            sequence.num_computed_tokens = sequence.num_swapped_tokens
        if sequence.host_blocks:
            self.swapped_in.append(sequence)

    # -- the outcome

    def plan(self, preempted: tuple[int, ...]) -> StepPlan:
        return StepPlan(
            chunks=(*self._decodes, *self._prefills),
            num_decodes=len(self._decodes),
            num_tokens=self._config.max_num_batched_tokens - self._budget,
            copies=tuple(self._copies),
            preempted=preempted,
            swaps_out=tuple(self._swaps_out),
            swaps_in=tuple(self._swaps_in),
            wake_s=None if self._planned else self.wake_s,
        )

    @property
    def lets_decodes_stand(self) -> bool:
        """Whether sequences are ready to decode, and none does."""
        return not self._decodes and any(s.is_decoding and s.seq_id not in self._planned for s in self._roster.running)
