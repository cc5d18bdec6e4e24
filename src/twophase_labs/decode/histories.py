"""Random lives of sequences in a pool too small for them, watched by the shadow-KV oracle."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from twophase.core.errors import OutOfBlocksError
from twophase_labs.decode.shadow import Finding, ShadowKV

MAX_LIVE = 5


@dataclass
class Live:
    """A sequence: all of `token_ids` were written into its table's slots."""

    name: str
    table: Any
    token_ids: list[int]


class History:
    """One pool, its shadow, and the sequences that come, grow, share and go.

    Args:
        pool: With the interface of exercise 3.2.
        new_table: `new_table(pool, block_size)`, with the interface of exercise 3.3.
        fork, prepare_write: Those of exercise 3.4; without them sequences share full blocks only.

    Attributes:
        events: What happened, in words.
        frames: After each event, the block ids of every live sequence.
        counts: How often what happened.
    """

    def __init__(
        self,
        pool: Any,
        new_table: Callable[[Any, int], Any],
        *,
        num_blocks: int,
        block_size: int,
        seed: int,
        fork: Callable[[Any], Any] | None = None,
        prepare_write: Callable[[Any], Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        self.pool, self.new_table = pool, new_table
        self.num_blocks, self.block_size = num_blocks, block_size
        self.fork, self.prepare_write = fork, prepare_write
        self.shadow = ShadowKV(num_blocks, block_size)
        self.live: list[Live] = []
        self.events: list[str] = []
        self.frames: list[dict[str, list[int]]] = []
        self.counts: Counter[str] = Counter()
        self._lot = random.Random(seed)
        self._num_started = 0

    def run(self, num_events: int) -> None:
        """Random events, each followed by reads of all that is alive; in the end everything is freed.

        Raises:
            Finding: The oracle found something.
        """
        for _ in range(num_events):
            self._random_event()
            self._check()
        while self.live:
            self._end(self.live[-1])
            self._check()
        if self.pool.num_free != self.num_blocks:
            raise Finding(
                f"all sequences have ended, and {self.num_blocks - self.pool.num_free} of {self.num_blocks} blocks "
                "are not free"
            )

    def _random_event(self) -> None:
        events, weights = ["start", "grow", "share", "end"], [20, 50, 12, 12]
        if self.fork is not None:
            events, weights = [*events, "fork"], [*weights, 15]
        event = self._lot.choices(events, weights)[0]
        if event == "start" or not self.live:
            if len(self.live) < MAX_LIVE:
                self._start(self._lot.randint(1, 3 * self.block_size))
            return
        sequence = self._lot.choice(self.live)
        if event == "grow":
            self._extend(sequence, self._lot.choice((1, 1, 1, 2, self.block_size + 1)))
        elif event == "end":
            self._end(sequence)
        elif len(self.live) < MAX_LIVE:
            self._share(sequence) if event == "share" else self._fork(sequence)

    def _start(self, num_tokens: int) -> None:
        sequence = Live(self._new_name(), self.new_table(self.pool, self.block_size), [])
        self.live.append(sequence)
        self._extend(sequence, num_tokens, "starts with")

    def _extend(self, sequence: Live, num_new: int, verb: str = "grows to") -> None:
        table, old_length = sequence.table, len(sequence.token_ids)
        num_tokens = old_length + num_new
        before = self._books(table)
        self._note("start" if verb == "starts with" else "grow", f"{sequence.name} {verb} {num_tokens} tokens")
        try:
            if self.prepare_write is not None and old_length:
                copies = list(self.prepare_write(table))
                self.shadow.copy(copies)
                self.counts["copy"] += len(copies)
                before = self._books(table)
            table.grow(num_tokens)
        except OutOfBlocksError:
            self._note("out of blocks", f"   out of blocks: {sequence.name} ends")
            if self._books(table) != before:
                raise Finding(
                    f"OutOfBlocksError, and something has changed: (block ids, tokens, reference counts) "
                    f"were {before}, are {self._books(table)}"
                ) from None
            needed = -(-num_tokens // self.block_size) - len(before[0])
            if needed <= self._num_unheld() and self.prepare_write is None:
                raise Finding(
                    f"OutOfBlocksError for {needed} blocks, and {self._num_unheld()} are held by nobody"
                ) from None
            self._end(sequence)
            return
        sequence.token_ids += [self._lot.randrange(1000) for _ in range(num_new)]
        self.shadow.write(sequence.name, table, sequence.token_ids, old_length)

    def _share(self, sequence: Live) -> None:
        """A second sequence begins with the same text, and takes the full blocks that hold it."""
        num_full = len(sequence.token_ids) // self.block_size
        if not num_full:
            return
        table = self.new_table(self.pool, self.block_size)
        table.block_ids = list(sequence.table.block_ids[:num_full])
        for block_id in table.block_ids:
            self.pool.acquire(block_id)
        table.num_tokens = num_full * self.block_size
        twin = Live(self._new_name(), table, sequence.token_ids[: table.num_tokens])
        self.live.append(twin)
        self._note("share", f"{twin.name} takes {num_full} full blocks from {sequence.name}")

    def _fork(self, sequence: Live) -> None:
        assert self.fork is not None
        twin = Live(self._new_name(), self.fork(sequence.table), list(sequence.token_ids))
        self.live.append(twin)
        self._note("fork", f"{twin.name} is forked from {sequence.name}")

    def _end(self, sequence: Live) -> None:
        self.live.remove(sequence)
        self._note("end", f"{sequence.name} ends")
        sequence.table.free()

    def _check(self) -> None:
        self.frames.append({sequence.name: list(sequence.table.block_ids) for sequence in self.live})
        for sequence in self.live:
            self.shadow.read(sequence.name, sequence.table, sequence.token_ids)
        holders = Counter(block for sequence in self.live for block in sequence.table.block_ids)
        for block_id in range(self.num_blocks):
            if self._owners()[block_id] != holders[block_id]:
                plural = "s" * (holders[block_id] != 1)
                raise Finding(
                    f"block {block_id} is held by {holders[block_id]} sequence{plural}, "
                    f"and its reference count is {self._owners()[block_id]}"
                )
        if self.pool.num_free != self._num_unheld():
            raise Finding(f"num_free is {self.pool.num_free}, and {self._num_unheld()} blocks are held by nobody")

    def _num_unheld(self) -> int:
        return self.num_blocks - len({block for s in self.live for block in s.table.block_ids})

    def _books(self, table: Any) -> tuple[list[int], int, list[int]]:
        return list(table.block_ids), table.num_tokens, self._owners()

    def _owners(self) -> list[int]:
        """By block; a pool's counts may be a list, or a dictionary of those in use."""
        counts = self.pool.ref_counts
        if isinstance(counts, Mapping):
            return [counts.get(block_id, 0) for block_id in range(self.num_blocks)]
        return list(counts)

    def _note(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.events.append(text)

    def _new_name(self) -> str:
        number = self._num_started
        self._num_started += 1
        return ascii_uppercase[number % 26] + (str(number // 26) if number >= 26 else "")
