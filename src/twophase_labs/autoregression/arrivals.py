"""A stream of requests over a small cache, replayed on one allocator or another."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from twophase.cache.manager import CacheManager
from twophase.core.errors import OutOfBlocksError


@dataclass(frozen=True)
class Arrival:
    """One request. `max_tokens` bounds prompt and output together; where it really ends, only the replay knows.

    Attributes:
        step: When it arrives.
        num_prompt: Tokens written when it is admitted.
        num_tokens: Tokens it has in the end; one is written per step.
        max_tokens: What an allocator that cannot grow has to set aside.
    """

    name: str
    step: int
    num_prompt: int
    num_tokens: int
    max_tokens: int


@runtime_checkable
class Allocator(Protocol):
    """What `replay` asks for. `write` may raise `OutOfBlocksError`; `slots_of` lists a request's slots in order."""

    num_slots: int

    def admit(self, name: str, num_prompt: int, max_tokens: int) -> bool: ...
    def write(self, name: str) -> None: ...
    def finish(self, name: str) -> None: ...
    def slots_of(self, name: str) -> Sequence[int]: ...


class Contiguous:
    """Each request gets `max_tokens` adjacent slots when it comes, where `first_fit(owners, length)` says.

    `owners` has the holder of every slot, None where it is free.
    """

    def __init__(self, num_slots: int, first_fit: Callable[[list[str | None], int], int | None]) -> None:
        self.num_slots = num_slots
        self.owners: list[str | None] = [None] * num_slots
        self._first_fit = first_fit

    def admit(self, name: str, num_prompt: int, max_tokens: int) -> bool:
        start = self._first_fit(list(self.owners), max_tokens)
        if start is None:
            return False
        self.owners[start : start + max_tokens] = [name] * max_tokens
        return True

    def write(self, name: str) -> None:
        """The slot was set aside long ago."""

    def finish(self, name: str) -> None:
        self.owners = [None if owner == name else owner for owner in self.owners]

    def slots_of(self, name: str) -> Sequence[int]:
        return [slot for slot, owner in enumerate(self.owners) if owner == name]


class Paged:
    """Each request gets pages as its tokens come, from the engine's own `CacheManager`, through three functions."""

    def __init__(
        self,
        cache: CacheManager,
        admit: Callable[[CacheManager, int], Any],
        write_token: Callable[[CacheManager, Any], Any],
        finish: Callable[[CacheManager, Any], Any],
    ) -> None:
        self.num_slots = cache.num_blocks * cache.block_size
        self.tables: dict[str, Any] = {}
        self._cache, self._admit, self._write, self._finish = cache, admit, write_token, finish

    def admit(self, name: str, num_prompt: int, max_tokens: int) -> bool:
        table = self._admit(self._cache, num_prompt)
        if table is not None:
            self.tables[name] = table
        return table is not None

    def write(self, name: str) -> None:
        self._write(self._cache, self.tables[name])

    def finish(self, name: str) -> None:
        self._finish(self._cache, self.tables.pop(name))

    def slots_of(self, name: str) -> Sequence[int]:
        size = self._cache.block_size
        return [block * size + offset for block in self.tables[name].block_ids for offset in range(size)]


@dataclass(frozen=True)
class Snapshot:
    """After a step: the slots of each running request in order, and how many of them hold a token."""

    num_slots: int
    slots: Mapping[str, tuple[int, ...]]
    written: Mapping[str, int]

    @property
    def owners(self) -> list[str | None]:
        """Who holds each slot; None where it is free."""
        owners: list[str | None] = [None] * self.num_slots
        for name, slots in self.slots.items():
            for slot in slots:
                owners[slot] = name
        return owners

    @property
    def num_free(self) -> int:
        return self.num_slots - sum(map(len, self.slots.values()))

    @property
    def num_written(self) -> int:
        return sum(self.written.values())


@dataclass
class Replay:
    """What became of the requests. `refused` has the state of the cache that turned each one away."""

    snapshots: list[Snapshot] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    refused: dict[str, Snapshot] = field(default_factory=dict)
    cut_short: list[str] = field(default_factory=list)


def random_requests(num_requests: int, seed: int) -> list[Arrival]:
    """Prompts of 3 to 10 tokens, limits of 16 to 40, and answers that mostly end long before their limit."""
    draw = random.Random(seed)
    arrivals, step = [], 0
    for number in range(num_requests):
        num_prompt, max_tokens = draw.randint(3, 10), draw.randint(16, 40)
        num_output = min(1 + int(draw.expovariate(1 / 9)), max_tokens - num_prompt)
        arrivals.append(Arrival(f"r{number}", step, num_prompt, num_prompt + num_output, max_tokens))
        step += draw.randint(1, 4)
    return arrivals


def replay(arrivals: Sequence[Arrival], allocator: Allocator) -> Replay:
    """Serve the requests step by step. One that is not admitted, or finds no room to grow, is lost."""
    result = Replay()
    running: dict[str, Arrival] = {}
    written: dict[str, int] = {}

    def snapshot() -> Snapshot:
        return Snapshot(allocator.num_slots, {n: tuple(allocator.slots_of(n)) for n in running}, dict(written))

    for step in range(max(a.step + a.num_tokens for a in arrivals)):
        for name, arrival in list(running.items()):
            ended = result.finished if written[name] == arrival.num_tokens else None
            if ended is None:
                try:
                    allocator.write(name)
                    written[name] += 1
                except OutOfBlocksError:
                    ended = result.cut_short
            if ended is not None:
                allocator.finish(name)
                del running[name], written[name]
                ended.append(name)
        for arrival in (a for a in arrivals if a.step == step):
            if allocator.admit(arrival.name, arrival.num_prompt, arrival.max_tokens):
                running[arrival.name], written[arrival.name] = arrival, arrival.num_prompt
            else:
                result.refused[arrival.name] = snapshot()
        result.snapshots.append(snapshot())
    return result
