"""Random histories of a cache under pressure, checked after every event by the shadow-KV oracle."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.cache.shadow import ShadowKV, check_kept, check_live_tables, num_reserved, snapshot
from twophase.cache.manager import NEVER, BlockTable, CacheManager
from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase_features.offloading.host_memory import HostMemoryTier
from twophase_features.windows.sliding_window import FREED, SlidingWindow

NewCache = Callable[..., CacheManager]

SALTS = ("", "", "tenant")


@dataclass(eq=False)
class Live:
    """A sequence: [0, num_computed) of its tokens were written into its table's slots.

    Attributes:
        num_confirmed: Of these, the cache was told of so many.
    """

    token_ids: list[int]
    salt: str
    table: BlockTable | None = None
    num_computed: int = 0
    num_confirmed: int = 0


@dataclass
class History:
    """A cache, its shadow, and the sequences that use it; each method is one event. Used by hypothesis as well."""

    new_cache: NewCache
    num_blocks: int
    block_size: int
    window: SlidingWindow | None = None
    sees_all: tuple[bool, ...] = (False,)  # each group of layers
    num_host_blocks: int = 0
    live: list[Live] = field(default_factory=list)
    preempted: list[Live] = field(default_factory=list)
    events: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        options = {} if self.window is None else {"window": self.window, "sees_all": self.sees_all}
        self.cache = self.new_cache(self.num_blocks, self.block_size, **options)
        self.shadow = ShadowKV(self.block_size, self.window, self.sees_all)
        if self.num_host_blocks:
            self.cache.tier = HostMemoryTier(self.num_host_blocks)
            self.cache.tier.attach(self.shadow)
        self.num_groups = len(self.sees_all)

    def start(self, sequence: Live, reserves: bool = False) -> None:
        """Admit a sequence, new or preempted: what the cache says it holds is read at once.

        With `reserves` all its tokens may be computed from then on, whatever the others take.
        """
        is_resumed = sequence in self.preempted
        num_free = self.cache.num_free_blocks
        sequence.table = table = self.cache.open(sequence.token_ids, sequence.salt, count_in_stats=not is_resumed)
        num_hit = len(table.block_ids) // self.num_groups * self.block_size
        assert table.num_tokens == table.num_cached_tokens == num_hit, "a hit is whole blocks"
        assert table.num_cached_tokens < len(sequence.token_ids), "a fully cached prompt must still compute a token"
        num_taken = num_free - self.cache.num_free_blocks
        assert 0 <= num_taken <= len(table.block_ids), f"{num_taken} blocks taken for a hit of {len(table.block_ids)}"
        if self.cache.num_free_blocks < 0:
            self.cache.close(table)  # what it hit is reserved for another
            assert self.cache.num_free_blocks == num_free
            self.events["refused"] += 1
            return
        if is_resumed:
            self.preempted.remove(sequence)
        self._load(table, sequence.token_ids, reserves)
        assert table.num_cached_tokens < len(sequence.token_ids), "what was loaded leaves a token to compute"
        sequence.num_computed = sequence.num_confirmed = table.num_cached_tokens
        self.live.append(sequence)
        self.events["hit" if table.num_cached_tokens else "miss"] += 1
        self.events["hit with gaps"] += FREED in table.block_ids and table.num_cached_tokens > 0
        self._read(sequence)

    def _load(self, table: BlockTable, token_ids: list[int], reserves: bool) -> None:
        """What the tier has of the text comes into blocks behind the hit, if there is room for it."""
        num_offered = table.num_offered_tokens
        num_tokens = len(token_ids) if reserves else table.num_tokens + num_offered
        if num_tokens == table.num_tokens:
            return
        num_needed, num_free = self.cache.num_blocks_needed(table, num_tokens), self.cache.num_free_blocks
        try:
            self.cache.reserve(table, num_tokens)
        except OutOfBlocksError:
            assert num_needed > num_free, "there were enough blocks"
            return
        assert self.cache.num_free_blocks == num_free - num_needed, "another number of blocks than announced"
        self.events["reserved"] += 1
        if num_offered:
            self.events["offered"] += 1
            num_loaded = len(self.cache.load(table, token_ids))
            assert num_loaded <= num_offered // self.block_size * self.num_groups
            self.events["loaded"] += num_loaded > 0
            self.events["lost by the tier"] += num_loaded < num_offered // self.block_size * self.num_groups

    def step(self, sequence: Live, num_tokens: int, *, num_ahead: int = 0, publishes: bool = True) -> bool:
        """Compute the next `num_tokens` (those that exist) with `num_ahead` more slots; False if blocks are short."""
        end = min(sequence.num_computed + num_tokens, len(sequence.token_ids))
        start, table, before = sequence.num_computed, sequence.table, snapshot(self.cache)
        wanted = max(end + num_ahead, table.num_tokens)
        num_in_pool, num_before = self.cache._pool.num_free, len(table.block_ids)
        num_needed, has_room = self.cache.num_blocks_needed(table, wanted), self.has_room(table, wanted)
        try:
            copies = self.cache.grow(table, wanted)
        except OutOfBlocksError:
            assert not has_room, "there were enough blocks"
            assert snapshot(self.cache) == before, "a failed allocation changed something"
            self.events["out of blocks"] += 1
            return False
        assert has_room, "it took what was reserved for another"
        num_taken = len(table.block_ids) - num_before + len(copies)
        assert self.cache._pool.num_free == num_in_pool - num_taken, "another number of blocks than it has now"
        assert self.window is not None or num_taken == num_needed, "another number of blocks than announced"
        self.events["copy on write"] += len(copies)
        self.shadow.copy_blocks(copies)
        self.shadow.write(table.block_ids, sequence.token_ids, start, end, sequence.salt)
        self.shadow.read(table.block_ids, sequence.token_ids, end, sequence.salt, first_query=start)
        sequence.num_computed = end
        if publishes:
            num_held = len(table.block_ids) - table.block_ids.count(FREED)
            self.cache.publish(table, sequence.token_ids, end)
            sequence.num_confirmed = end
            self.events["block freed"] += num_held - (len(table.block_ids) - table.block_ids.count(FREED))
        self._read(sequence)
        return True

    def has_room(self, table: BlockTable, num_tokens: int) -> bool:
        return self.cache.room(table, num_tokens, self.cache.num_free_blocks) == num_tokens

    def verify(self, sequence: Live, num_drafts: int, num_accepted: int, newest: int) -> bool:
        """A step of a sequence that has one token to compute, with drafts behind it, of which some are right.

        The wrong ones are written too, and what they took is given back.
        """
        start, table = sequence.num_computed, sequence.table
        right = [(newest + i) % 3 for i in range(num_accepted)]
        wrong = [7 + i for i in range(num_drafts - num_accepted)]
        written = [*sequence.token_ids, *right, *wrong]
        wanted, num_free = len(written), self.cache._pool.num_free
        if table.num_tokens > start or not self.has_room(table, wanted):
            return False
        num_before = len(table.block_ids)
        self.shadow.copy_blocks(self.cache.grow(table, wanted))
        held = table.block_ids
        self.shadow.write(held, written, start, wanted, sequence.salt)
        sequence.token_ids += right
        sequence.num_computed = end = start + 1 + num_accepted
        self.cache.truncate(table, end)
        assert table.num_tokens == end, "the table says what was asked for"
        assert len(held) == -(-wanted // self.block_size) * self.num_groups, "a step's own list of blocks was changed"
        num_more = len(table.block_ids) - num_before
        assert num_free - self.cache._pool.num_free <= num_more + self.num_groups, "blocks of wrong drafts were kept"
        self.cache.publish(table, sequence.token_ids, end)
        sequence.num_confirmed = end
        self.events["verify"] += 1
        self.events["reject"] += num_accepted < num_drafts
        return True

    def cut(self, sequence: Live, num_tokens: int) -> None:
        """Any cut: what others may read is refused; what was handed out ahead is given back."""
        table, before = sequence.table, snapshot(self.cache)
        if num_tokens >= sequence.num_computed:
            try:
                self.cache.truncate(table, num_tokens)
                self.events["cut"] += 1
                return
            except CacheStateError:
                assert num_tokens > table.num_tokens or any(
                    sum(block in other.table.block_ids for other in self.live) > 1
                    for block in table.block_ids[num_tokens // self.block_size * self.num_groups :]
                ), "a cut refused without need"
        elif num_tokens < table.publish_at - self.block_size < NEVER // 2:
            with pytest.raises(CacheStateError):
                self.cache.truncate(table, num_tokens)
        assert snapshot(self.cache) == before, "a refused cut changed something"

    def fault(self, sequence: Live, num_tokens: int) -> None:
        """A step that raised after it got its slots and before it wrote them: the sequence fails."""
        try:
            self.shadow.copy_blocks(self.cache.grow(sequence.table, sequence.table.num_tokens + num_tokens))
        except OutOfBlocksError:
            self.events["out of blocks"] += 1
        self.close(sequence)

    def fork(self, sequence: Live) -> None:
        if sequence.num_computed == sequence.table.num_tokens:
            table = self.cache.fork(sequence.table)
            fork = Live(list(sequence.token_ids), sequence.salt, table, sequence.num_computed, sequence.num_confirmed)
            self.live.append(fork)
            self.events["fork"] += 1

    def close(self, sequence: Live) -> None:
        self.live.remove(sequence)
        self.cache.close(sequence.table)
        before = snapshot(self.cache)
        with pytest.raises(CacheStateError):
            self.cache.close(sequence.table)
        assert snapshot(self.cache) == before, "a refused close changed something"

    def preempt(self, sequence: Live) -> None:
        self.close(sequence)
        self.preempted.append(sequence)

    def reset(self) -> None:
        before = snapshot(self.cache)
        if any(sequence.table.block_ids for sequence in self.live):
            with pytest.raises(CacheStateError):
                self.cache.reset_prefix_cache()
            assert snapshot(self.cache) == before, "a refused reset changed something"
        else:
            self.cache.reset_prefix_cache()
            assert self.cache.stats().num_cached == 0, "a reset left blocks findable"
            self.events["reset"] += 1

    def check(self) -> None:
        """Every live sequence still reads its own tokens, and the books agree."""
        check_live_tables(self.cache, [sequence.table for sequence in self.live])
        for sequence in self.live:
            self._read(sequence)
            check_kept(sequence.table, self.cache.block_size, sequence.num_confirmed, self.window, self.sees_all)
        self._check_reservations()

    def _check_reservations(self) -> None:
        """What is free is for all but what is reserved, by the definition; and no prefill has to wait for a block."""
        filling = getattr(self.cache, "_filling", {})
        reserving = [s for s in self.live if filling.get(s.table, 0) > s.table.num_tokens]
        reserved = [num_reserved(self.cache, s.table, filling[s.table], self.window, self.sees_all) for s in reserving]
        num_in_pool = self.cache._pool.num_free
        assert self.cache.num_free_blocks == num_in_pool - sum(reserved) >= 0, f"{reserved} of {num_in_pool} reserved"
        for sequence in reserving:
            if sequence.num_confirmed == sequence.num_computed:
                end = self.cache.room(sequence.table, filling[sequence.table], 0)
                assert end > sequence.num_computed, f"a prefill waits: {sequence}"

    def finish(self) -> None:
        """Close everything: nothing stays in use."""
        for sequence in list(self.live):
            self.close(sequence)
        self.check()
        assert self.cache.num_free_blocks == self.num_blocks, "blocks leaked"

    def _read(self, sequence: Live) -> None:
        self.shadow.read(sequence.table.block_ids, sequence.token_ids, sequence.num_computed, sequence.salt)


def random_history(new_cache: NewCache, seed: int, num_events: int = 50) -> Counter:
    """Sequences with shared prefixes come, grow, fork, fail and go in a pool too small for them; counts events."""
    rng = random.Random(seed)
    window = rng.choice((None, SlidingWindow(rng.randint(1, 12), rng.choice((0, 0, 1, 3, 6)))))
    sees_all = rng.choice(((False,), (False,), (True, False), (True, False, False))) if window else (False,)
    history = History(
        new_cache,
        num_blocks=rng.randint(3, 14) * len(sees_all),
        block_size=rng.choice((1, 2, 3, 4)),
        window=window,
        sees_all=sees_all,
        num_host_blocks=rng.choice((0, 3, 40)),
    )
    documents = [[rng.randrange(3) for _ in range(24)] for _ in range(2)]
    for _ in range(num_events):
        _random_event(history, rng, documents)
        history.check()
    history.finish()
    if len(sees_all) > 1:
        history.events += Counter({f"{event} in groups": count for event, count in history.events.items()})
    return history.events


def _random_event(history: History, rng: random.Random, documents: list[list[int]]) -> None:
    event = rng.choices(
        ("start", "step", "fork", "fault", "close", "preempt", "reset", "verify", "cut"),
        weights=(20, 60, 5, 2, 6, 7, 2, 20, 4),
    )[0]
    if event == "reset":
        history.reset()
        return
    if event == "start" or not history.live:
        if history.preempted and rng.random() < 0.5:
            history.start(rng.choice(history.preempted), reserves=rng.random() < 0.5)
        elif len(history.live) < 6:
            prompt = [*rng.choice(documents)[: rng.randint(0, 24)], rng.randrange(3)]
            if rng.random() < 0.3:  # as others had it, to the end of a block
                prompt = rng.choice(documents)[: history.block_size * rng.randint(1, 3)]
            history.start(Live(prompt, rng.choice(SALTS)), reserves=rng.random() < 0.5)
        return
    sequence = rng.choice(history.live)
    if event == "step":
        if sequence.num_computed == len(sequence.token_ids):
            sequence.token_ids.append(rng.randrange(3))
        num_ahead = rng.choice((0, 0, 0, 0, 5))
        if not history.step(sequence, rng.randint(1, 12), num_ahead=num_ahead, publishes=rng.random() < 0.9):
            history.preempt(rng.choice(history.live))
    elif event == "verify":
        if sequence.num_computed == len(sequence.token_ids):
            sequence.token_ids.append(rng.randrange(3))
        if sequence.num_computed == len(sequence.token_ids) - 1:
            num_drafts = rng.randint(1, 6)
            history.verify(sequence, num_drafts, rng.randint(0, num_drafts), rng.randrange(3))
    elif event == "cut":
        history.cut(sequence, rng.randint(0, sequence.table.num_tokens + 1))
    elif event == "fault":
        history.fault(sequence, rng.randint(1, 12))
    else:
        getattr(history, event)(sequence)
