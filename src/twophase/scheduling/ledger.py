"""The block ledger: the one place where sequences get K/V blocks and sequence places, and give them back."""

import enum
import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import final

from twophase.cache.block_table import BlockTable
from twophase.cache.manager import CacheManager
from twophase.core.errors import BlockCopyError, OutOfBlocksError
from twophase.core.plan import BlockCopy
from twophase.scheduling.admission import OutputLengths, growth_rule
from twophase.scheduling.config import SchedulerConfig
from twophase.scheduling.sequence import Sequence


class Refusal(enum.Enum):
    """Why a sequence was not let in, and how long that holds."""

    BLOCKS = "too few free blocks"  # until one is freed, or one is published that it can share
    PLACES = "max_num_seqs"  # until a running sequence ends or is preempted
    BUDGET = "token budget"  # until a step has more tokens left for it
    POLICY = "the policy did not ask for it"  # or allowed it no token; as long as the policy's rule says so


@final
class BlockLedger:
    """Every block that a sequence takes or gives back is entered here, and every sequence place: there are
    `max_num_seqs`, and each completion takes one. A method that raises has changed nothing.

    - `admit` gives a sequence blocks for all the tokens it has, so that a prefill, once begun, needs no more; and it
      leaves free what the sequences with blocks may still take: by the optimistic rule a block (of each group of
      layers) for each that may grow, so that none is preempted right after another was let in (see
      `SchedulerConfig.admission` and admission.py).
    - With a sliding window a prefill takes its blocks chunk by chunk, for it frees some as it goes. What it may still
      need for the smallest chunks (`CacheManager.num_blocks_to_come`) is *promised* to it: neither an admission nor a
      decode takes it. Promised blocks are as good as taken, so a prefill, once begun, still needs no more, and what
      keeps the rest from waiting in a ring holds as it did: there are at least as many free blocks as promised ones,
      and the sequence of best rank always goes on, at worst with all the others preempted. A chunk is larger than its
      promise if blocks are free that were not promised and no admission would have to leave.
    - A block that has to be filled from another one, or from the KV tier, is filled at once.

    Attributes:
        copy_blocks: Copies whole blocks of the K/V cache; the engine's runner has it (`Scheduler.connect`).
        copies: Since the last step that was done.
        loaded: Blocks that were filled from the KV tier since then.
        drafting: Sequences with room for drafts, which is taken back when the step is dropped.
        num_places_taken: Completions that run, or will when their prompt is done.
        output_lengths: Of the completions that ended; the scheduler notes them.
    """

    def __init__(self, config: SchedulerConfig, cache: CacheManager) -> None:
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
        self._num_to_grow: int | None = None  # blocks that all owners may still take
        self._num_promised: int | None = None
        self._forget_counts()

    # -- how much there is

    @property
    def num_free_places(self) -> int:
        return self.config.max_num_seqs - self.num_places_taken

    @property
    def num_spare_blocks(self) -> int:
        """Free blocks that no running prefill was promised."""
        if self._num_promised is None:
            self._num_promised = sum(self._num_to_come(owner) for owner in self._owners if not owner.is_decoding)
        return self.cache.num_free_blocks - self._num_promised

    @property
    def num_slots(self) -> int | float:
        """Of the pool, if a sequence may be longer than that: with a window."""
        cache = self.cache
        return math.inf if cache.window is None else cache.num_blocks // cache.num_groups * cache.block_size

    def _num_to_come(self, sequence: Sequence) -> int:
        """Blocks that a prefill may still need."""
        table = sequence.open_table
        return self.cache.num_blocks_to_come(table, max(len(sequence.token_ids), table.num_tokens))

    def _num_kept_free(self, sequence: Sequence, table: BlockTable) -> int:
        """Blocks a newcomer must leave free: those that sequences with blocks, and itself, may still take by the rule
        of admission (admission.py), and the watermark. Alone, it need not leave any: `check_request` saw to it that the
        pool is large enough for one."""
        is_owner = sequence.table is not None
        if len(self._owners) == is_owner:
            return 0
        if self._num_to_grow is None:
            self._num_to_grow = sum(self._growth(owner, owner.open_table) for owner in self._owners)
        own = 0 if is_owner else self._growth(sequence, table)
        return math.ceil(self.config.watermark * self.cache.num_blocks) + self._num_to_grow + own

    def _forget_counts(self) -> None:
        """Sequences grew, came or went: count anew when needed."""
        self._num_to_grow = None
        self._num_promised = 0
        self._forget_shares()

    def _forget_shares(self) -> None:
        """Other blocks are shared than before: with a window, others come back when they leave it."""
        if self.cache.window is not None:
            self._num_to_grow = self._num_promised = None

    @property
    def num_offloaded(self) -> int:
        """Blocks that the KV tier copied since the last step that was done."""
        return self.cache.num_offloaded - self._num_offloaded_before

    # -- taking

    def admit(self, sequence: Sequence, max_uncomputed: int | None = None) -> Refusal | None:
        """Give a waiting sequence a place and its blocks, hits and new ones; or tell why not.

        Args:
            max_uncomputed: Tokens that it may have to compute at most, in one step; None: any number, in chunks.
        """
        if sequence.num_completions > self.num_free_places:
            return Refusal.PLACES
        salt, is_first_time = sequence.request.cache_salt, sequence.num_preemptions == 0
        table = self.cache.open(sequence.lookup_ids, salt, is_first_time, sequence.block_keys)
        self._forget_shares()  # others' blocks that were hit do not come back to them
        refusal = self._refusal(sequence, table, max_uncomputed)
        if refusal is not None:
            self.cache.close(table)
        elif self.cache.window is None:
            self.cache.grow(table, len(sequence.token_ids))
        elif table.offered:
            self.cache.grow(table, table.num_tokens + table.num_offered_tokens)
        self._forget_shares()
        if refusal is None:
            self._enter(sequence, table)
        return refusal

    def _refusal(self, sequence: Sequence, table: BlockTable, max_uncomputed: int | None) -> Refusal | None:
        num_tokens = len(sequence.token_ids)
        num_blocks_of = self.cache.num_blocks_to_come
        if max_uncomputed is not None:
            if num_tokens - table.num_cached_tokens - self.cache.num_offered_tokens(table) > max_uncomputed:
                return Refusal.BUDGET
            num_blocks_of = self.cache.num_blocks_needed  # all at once
        num_spare = self.num_spare_blocks - self._num_kept_free(sequence, table)
        if num_blocks_of(table, num_tokens) > num_spare:
            return Refusal.BLOCKS
        if self.cache.window is not None and table.offered:
            num_offered = self.cache.num_blocks_needed(table, table.num_tokens + table.num_offered_tokens)
            table.offered = table.offered if num_offered <= num_spare else ()
        return None

    def _enter(self, sequence: Sequence, table: BlockTable) -> None:
        """These are its blocks now, and what the KV tier has of them is there."""
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
        """Slots for so many tokens in all.

        Raises:
            OutOfBlocksError: There are not enough free blocks.
        """
        self._copy(self.cache.grow(sequence.open_table, num_tokens))

    def grow_for_decode(self, sequence: Sequence) -> bool:
        """A slot for a sequence's newest token; False if no block is free but those that were promised.

        Raises:
            BlockCopyError: The slot's block could not be filled: the sequence cannot go on.
        """
        table, num_tokens = sequence.table, len(sequence.token_ids)
        assert table is not None
        try:
            if self._num_promised != 0 and self.cache.num_blocks_needed(table, num_tokens) > self.num_spare_blocks:
                return False
            copies = self.cache.grow(table, num_tokens)
        except OutOfBlocksError:
            return False
        self._copy(copies)
        return True

    def grow_for_chunk(self, sequence: Sequence, num_tokens: int) -> int:
        """Slots for the next chunk of a prefill; returns how many of `num_tokens` there are. (All, without a window:
        it had them when it was let in.)
        """
        if self.cache.window is None or not num_tokens:
            return num_tokens
        start, table = sequence.num_computed_tokens, sequence.open_table
        num_spare = self.num_spare_blocks - self._num_kept_free(sequence, table)
        if sequence.is_decoding:  # then its own blocks were not promised
            num_spare -= self._num_to_come(sequence)
        whole = max(len(sequence.token_ids), table.num_tokens)
        num_blocks = self.cache.num_blocks_at_once(table, whole, max(0, num_spare))
        end = min(start + num_tokens, self.cache.num_tokens_within(table, num_blocks))
        self.grow(sequence, max(end, table.num_tokens))
        self._forget_shares()
        return end - start

    def grow_for_drafts(self, sequence: Sequence, max_drafts: int) -> int:
        """Slots for drafts behind a sequence's newest token, in blocks that are free and promised to none; returns
        their number.
        """
        table, num_tokens = sequence.open_table, len(sequence.token_ids)
        # All accepted, a token is drawn after the last of them too; and that one must not be one too many.
        num_drafts = max(0, min(max_drafts, sequence.max_num_tokens - num_tokens - 1))
        num_spare = self.num_spare_blocks
        while num_drafts and self.cache.num_blocks_needed(table, num_tokens + num_drafts) > num_spare:
            num_drafts -= 1
        if num_drafts:
            self.drafting.append(sequence)
            copies = self.cache.grow(table, num_tokens + num_drafts)
            assert not copies, "the decode planned before has a last block of its own"
        return num_drafts

    def fork(self, sequence: Sequence, forks: Seq[Sequence]) -> None:
        """The completions that a sequence stood for part, sharing its blocks and places."""
        for fork in forks:
            fork.table = self.cache.fork(sequence.open_table)
        sequence.num_completions = 1
        self._owners.update(forks)
        self._forget_counts()

    # -- giving back

    def free(self, sequence: Sequence) -> None:
        """A sequence has ended: whatever it holds comes back."""
        if sequence.table is not None:
            self.take_back(sequence)

    def take_back(self, sequence: Sequence) -> None:
        """A sequence with a table gives its blocks and places back: it has ended, or is preempted."""
        self.cache.close(sequence.open_table)
        sequence.table = None
        sequence.num_computed_tokens = 0
        self._owners.remove(sequence)
        self.num_places_taken -= sequence.num_completions
        self._forget_counts()

    # -- when a step was run, and when it was not

    def confirm(self, sequence: Sequence, num_computed: int, is_whole: bool = True) -> None:
        """A sequence's first `num_computed` tokens are in its blocks: the full ones may be shared.

        Args:
            is_whole: These are all that it has; room for drafts that did not come, or were wrong, comes back.
        """
        table = sequence.table
        assert table is not None
        sequence.num_computed_tokens = num_computed
        if is_whole and table.num_tokens > num_computed:
            self.cache.truncate(table, num_computed)
        self.cache.publish(table, sequence.token_ids, num_computed)

    def commit(self) -> None:
        """The step was done."""
        self.copies, self.loaded, self.drafting = [], [], []
        self._num_offloaded_before = self.cache.num_offloaded
        self._forget_counts()

    def roll_back(self) -> None:
        """The step may not have been done: take back the room for drafts."""
        for sequence in self.drafting:
            if sequence.table is not None:
                self.cache.truncate(sequence.table, len(sequence.token_ids))
        self.drafting = []
        self._forget_counts()

    def _copy(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            try:
                self.copy_blocks(copies)
            except Exception as error:
                raise BlockCopyError(f"{type(error).__name__}: {error}") from error
            self.copies += copies
