"""The block ledger: the one place where sequences get K/V blocks and sequence places, and give them back."""

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import final

from twophase.cache.allocator import KVAllocator, KVTable
from twophase.core.errors import BlockCopyError, OutOfBlocksError
from twophase.core.plan import BlockCopy
from twophase.scheduling.admission import OutputLengths, growth_rule
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.policy import Refusal
from twophase.scheduling.sequence import Sequence


@final
class BlockLedger:
    """Every block that a sequence takes or gives back is entered here, and every sequence place: there are
    `max_num_seqs`, and each completion takes one. A method that raises has changed nothing.

    - `admit` reserves blocks for all the tokens that a sequence has, so that a prefill, once begun, never waits.
    - An admission leaves free what the sequences with blocks may still take, by one of three rules (admission.py).
    - A block that has to be filled from another one, or from the KV tier, is filled at once.

    Attributes:
        copy_blocks: Copies whole blocks of the K/V cache; the engine's runner has it (`Scheduler.connect`).
        copies, loaded: Blocks that were copied, and filled from the KV tier, since the last step that was done.
        drafting: Sequences with room for drafts, which is taken back when the step is dropped.
        num_places_taken: Completions that run, or will when their prompt is done.
        output_lengths: Of the completions that ended; the scheduler notes them.
    """

    def __init__(self, config: SchedulerConfig, cache: KVAllocator) -> None:
        self.config = config
        self.cache = cache
        self.num_places_taken = 0
        self.copy_blocks: Callable[[Seq[BlockCopy]], None] = lambda copies: None
        self.copies: list[BlockCopy] = []
        self.loaded: list[int] = []
        self._num_offloaded_before = 0
        self.drafting: list[Sequence] = []
        self.output_lengths = OutputLengths()
        self._growth = growth_rule(config, cache, self.output_lengths)
        self._owners: set[Sequence] = set()  # running: those with a table
        self._num_to_grow: int | None = None  # blocks that all owners may still take; None: to be counted anew

    @property
    def num_free_places(self) -> int:
        return self.config.max_num_seqs - self.num_places_taken

    @property
    def num_slots(self) -> int:
        """The most tokens that can have a slot at once."""
        return self.cache.num_blocks // self.cache.num_blocks_at_most(1) * self.cache.block_size

    @property
    def num_offloaded(self) -> int:
        """Blocks that the KV tier copied since the last step that was done."""
        return self.cache.num_offloaded - self._num_offloaded_before

    def _num_spare(self, sequence: Sequence, table: KVTable) -> int:
        """Free blocks that a sequence may take for its prompt: it leaves the watermark, and what every sequence may
        still take by the rule of admission. Alone it leaves none, for `check_request` found the pool large enough."""
        is_owner = sequence.table is not None
        if len(self._owners) == is_owner:
            return self.cache.num_free_blocks
        if self._num_to_grow is None:
            self._num_to_grow = sum(self._growth(owner, owner.open_table) for owner in self._owners)
        num_own = 0 if is_owner else self._growth(sequence, table)
        num_watermark = math.ceil(self.config.watermark * self.cache.num_blocks)
        return self.cache.num_free_blocks - self._num_to_grow - num_own - num_watermark

    # -- taking

    def admit(self, sequence: Sequence, max_uncomputed: int | None = None) -> Refusal | None:
        """Give a waiting sequence a place and its blocks; or tell why not.

        Args:
            max_uncomputed: Tokens that it may have to compute at most, in one step; None: any number, in chunks.
        """
        if sequence.num_completions > self.num_free_places:
            return Refusal.PLACES
        salt, is_first_time = sequence.request.cache_salt, sequence.num_preemptions == 0
        table = self.cache.open(sequence.lookup_ids, salt, is_first_time, sequence.block_keys)
        if table.num_cached_tokens:
            self._num_to_grow = None  # blocks that were hit may not come back to those that had them alone
        refusal = self._refusal(sequence, table, max_uncomputed)
        if refusal is None:
            self._enter(sequence, table)
        else:
            self._num_to_grow = None if table.num_cached_tokens else self._num_to_grow
            self.cache.close(table)
        return refusal

    def _refusal(self, sequence: Sequence, table: KVTable, max_uncomputed: int | None) -> Refusal | None:
        num_tokens, num_spare = len(sequence.token_ids), self._num_spare(sequence, table)
        if max_uncomputed is None:
            return None if self.cache.num_blocks_needed(table, num_tokens) <= num_spare else Refusal.BLOCKS
        if num_tokens - table.num_cached_tokens - table.num_offered_tokens > max_uncomputed:
            return Refusal.BUDGET
        return None if self.cache.room(table, num_tokens, num_spare) == num_tokens else Refusal.BLOCKS

    def _enter(self, sequence: Sequence, table: KVTable) -> None:
        self.cache.reserve(table, len(sequence.token_ids))
        self.loaded += self.cache.load(table, sequence.token_ids)
        sequence.table, sequence.block_keys = table, []
        sequence.num_computed_tokens = num_cached = table.num_cached_tokens
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = num_cached
        self._owners.add(sequence)
        self.num_places_taken += sequence.num_completions
        if self._num_to_grow is not None:
            self._num_to_grow += self._growth(sequence, table)

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Slots for so many tokens in all. Raises OutOfBlocksError, and BlockCopyError if a slot's block could not be
        filled: then the sequence cannot go on."""
        self._copy(self.cache.grow(sequence.open_table, num_tokens))

    def grow_for_decode(self, sequence: Sequence) -> bool:
        """A slot for a sequence's newest token; False if no block is free for it. Raises BlockCopyError as `grow`."""
        try:
            self.grow(sequence, len(sequence.token_ids))
        except OutOfBlocksError:
            return False
        return True

    def grow_for_chunk(self, sequence: Sequence, num_tokens: int) -> int:
        """Slots for the next chunk of a prefill; returns how many of `num_tokens` there are. A chunk takes what was
        reserved, and blocks that an admission could take too."""
        table, start = sequence.open_table, sequence.num_computed_tokens
        end = start + num_tokens
        if end > table.num_tokens:
            end = self.cache.room(table, end, max(0, self._num_spare(sequence, table)))
            self.grow(sequence, end)
            self._num_to_grow = None
        return end - start

    def grow_for_drafts(self, sequence: Sequence, max_drafts: int) -> int:
        """Slots for drafts behind a sequence's newest token, in blocks that are free; returns their number."""
        table, num_tokens = sequence.open_table, len(sequence.token_ids)
        # All accepted, a token is drawn after the last of them too; and that one must not be one too many.
        num_drafts = max(0, min(max_drafts, sequence.max_num_tokens - num_tokens - 1))
        end = self.cache.room(table, num_tokens + num_drafts, self.cache.num_free_blocks)
        if end > num_tokens:
            self.drafting.append(sequence)
            copies = self.cache.grow(table, end)
            assert not copies, "the decode planned before has a last block of its own"
        return end - num_tokens

    def fork(self, sequence: Sequence, forks: Seq[Sequence]) -> None:
        """The completions that a sequence stood for part, sharing its blocks and places."""
        for fork in forks:
            fork.table = self.cache.fork(sequence.open_table)
        sequence.num_completions = 1
        self._owners.update(forks)

    # -- giving back

    def take_back(self, sequence: Sequence) -> None:
        """A sequence that has ended, or is preempted, gives back the blocks and places that it has."""
        if sequence.table is None:
            return
        self.cache.close(sequence.table)
        sequence.table = None
        sequence.num_computed_tokens = 0
        self._owners.remove(sequence)
        self.num_places_taken -= sequence.num_completions

    # -- when a step was run, and when it was not

    def confirm(self, sequence: Sequence, num_computed: int, is_whole: bool = True) -> None:
        """A sequence's first `num_computed` tokens are in its blocks: the full ones may be shared.

        Args:
            is_whole: These are all that it has; room for drafts that did not come, or were wrong, comes back.
        """
        table, sequence.num_computed_tokens = sequence.open_table, num_computed
        if is_whole and table.num_tokens > num_computed:
            self.cache.truncate(table, num_computed)
        self.cache.publish(table, sequence.token_ids, num_computed)

    def commit(self) -> None:
        """The step was done."""
        self.copies, self.loaded, self.drafting = [], [], []
        self._num_offloaded_before = self.cache.num_offloaded

    def roll_back(self) -> None:
        """The step may not have been done: take back the room for drafts."""
        for sequence in self.drafting:
            if sequence.table is not None:
                self.cache.truncate(sequence.table, len(sequence.token_ids))
        self.drafting = []
        self._num_to_grow = None

    def _copy(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            try:
                self.copy_blocks(copies)
            except Exception as error:
                raise BlockCopyError(f"{type(error).__name__}: {error}") from error
            self.copies += copies
