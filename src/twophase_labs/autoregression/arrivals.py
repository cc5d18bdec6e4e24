"""A stream of requests over a small cache, in which each request is given all its slots in one piece."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Arrival:
    """One request. `max_length` bounds prompt and output together; where it really ends, only the replay knows.

    Attributes:
        step: When it arrives.
        num_prompt: Tokens written when it is admitted.
        num_tokens: Tokens it has in the end; one is written per step.
        max_length: What is set aside for it.
    """

    name: str
    step: int
    num_prompt: int
    num_tokens: int
    max_length: int


def first_fit(owners: Sequence[str | None], length: int) -> int | None:
    """The lowest place where `length` neighbouring slots are free, or None.

    >>> first_fit(["a", None, "b", None, None, None], 2)
    3
    >>> first_fit(["a", None, "b", None, None, None], 4)  # four are free, but not in one piece
    """
    run = 0
    for slot, owner in enumerate(owners):
        run = run + 1 if owner is None else 0
        if run == length:
            return slot - length + 1
    return None


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
        return self.num_slots - self.num_held

    @property
    def num_held(self) -> int:
        return sum(map(len, self.slots.values()))

    @property
    def num_written(self) -> int:
        return sum(self.written.values())


@dataclass
class Replay:
    """What became of the requests. For those without room, `rejected` has the cache, and `rejected_at` the step."""

    snapshots: list[Snapshot] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    rejected: dict[str, Snapshot] = field(default_factory=dict)
    rejected_at: dict[str, int] = field(default_factory=dict)


def random_requests(num_requests: int, seed: int) -> list[Arrival]:
    """Prompts of 3 to 10 tokens, limits of 16 to 40, and answers that mostly end long before their limit."""
    draw = random.Random(seed)
    arrivals, step = [], 0
    for number in range(num_requests):
        num_prompt, max_length = draw.randint(3, 10), draw.randint(16, 40)
        num_output = min(1 + int(draw.expovariate(1 / 9)), max_length - num_prompt)
        arrivals.append(Arrival(f"r{number}", step, num_prompt, num_prompt + num_output, max_length))
        step += draw.randint(1, 4)
    return arrivals


def replay(arrivals: Sequence[Arrival], num_slots: int) -> Replay:
    """Serve the requests step by step; one that finds no `max_length` free slots in one piece is rejected."""
    result = Replay()
    running: dict[str, Arrival] = {}
    slots: dict[str, tuple[int, ...]] = {}
    written: dict[str, int] = {}
    for step in range(max(a.step + a.num_tokens for a in arrivals)):
        for name, arrival in list(running.items()):
            if written[name] == arrival.num_tokens:
                result.finished.append(name)
                del running[name], slots[name], written[name]
            else:
                written[name] += 1
        for arrival in (a for a in arrivals if a.step == step):
            before = Snapshot(num_slots, dict(slots), dict(written))
            start = first_fit(before.owners, arrival.max_length)
            if start is None:
                result.rejected[arrival.name] = before
                result.rejected_at[arrival.name] = step
            else:
                running[arrival.name] = arrival
                slots[arrival.name] = tuple(range(start, start + arrival.max_length))
                written[arrival.name] = arrival.num_prompt
        result.snapshots.append(Snapshot(num_slots, dict(slots), dict(written)))
    return result
