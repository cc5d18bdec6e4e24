"""8.8: which blocks of paused sessions a tier in host memory keeps."""

from typing import Any

import numpy as np

from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import exercise

INDEX = exercise("8.8", "What waits in host memory", "TierIndex", points=4, minutes=16, lines=14, difficulty=2)
INDEX.time_limit_s = 20
INDEX.objective = "write the index of a KV tier, and judge it by tokens recomputed"
INDEX.hints = (
    "Two questions have to be answered fast: where is this block, and which one was used longest ago? A dict answers "
    "both, if a key that is used is taken out and put in again.",
    "A prefix is worth nothing without its first block. So after a match the first key must be the one used last.",
    """`store`, for each key:
        if key in self.place_of:
            ...  # used now
            places.append(None)
            continue
        place = ...  # a free one, else that of the key used longest ago, which is forgotten
        self.place_of[key] = place
        places.append(place)""",
)


class Model:
    """What the index has to hold, as a plain list, the block used longest ago first; places are the answer's choice."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.held: list[tuple[Any, int]] = []

    def use(self, key: Any) -> int | None:
        for number, (other, place) in enumerate(self.held):
            if other == key:
                self.held.append(self.held.pop(number))
                return place
        return None

    def match(self, keys: list[Any]) -> list[int]:
        held = dict(self.held)
        num_found = next((i for i, key in enumerate(keys) if key not in held), len(keys))
        for key in reversed(keys[:num_found]):
            self.use(key)
        return [held[key] for key in keys[:num_found]]

    def store(self, keys: list[Any], places: list[Any]) -> None:
        """Check the places that the answer chose, one by one."""
        for key, place in zip(keys, places, strict=True):
            if self.use(key) is not None:
                if place is not None:
                    reject(f"{key!r} is held already, so nothing is copied: None was expected, got {place!r}")
                continue
            is_number = isinstance(place, (int, np.integer)) and not isinstance(place, bool)
            if not is_number or not 0 <= place < self.num_blocks:
                reject(f"the place of {key!r} is {place!r}, expected 0 to {self.num_blocks - 1}")
            if len(self.held) == self.num_blocks:
                victim, free = self.held.pop(0)
                if place != free:
                    reject(f"{key!r} was put into place {place}; {victim!r}, in place {free}, was used longest ago")
            taken = {other: key for key, other in self.held}
            if place in taken:
                reject(f"{key!r} was put into place {place}, where {taken[place]!r} is; others are free")
            self.held.append((key, place))


def replay(answer: Any, num_blocks: int, calls: list[tuple[str, list[Any]]]) -> None:
    """Make the calls on an answer's index and on the model, and compare after each."""
    index, model = answer.TierIndex(num_blocks), Model(num_blocks)
    story: list[str] = []
    for name, keys in calls:
        story.append(f"{name}({keys})")
        got = getattr(index, name)(list(keys))
        if not isinstance(got, list | tuple):
            reject(f"{name} returns a list; it returned {got!r}", "; ".join(story))
        if name == "match":
            compare(list(got), model.match(keys), what=f"what match({keys}) returns, after {'; '.join(story[:-1])},")
        elif len(got) != len(keys):
            reject(f"store of {len(keys)} keys returned {len(got)} places", "; ".join(story))
        else:
            model.store(keys, list(got))


@INDEX.check("finds the first keys that it holds")
def finds_the_first(answer: Any, draw: Draw) -> None:
    """Stop at the first key that is missing: what follows a hole belongs to no prefix that can be used."""
    begun = [("match", ["a"]), ("store", ["a", "b", "d"])]
    replay(answer, 4, [*begun, ("match", ["a", "b", "c", "d"]), ("match", ["c", "a"])])
    replay(answer, 3, [("store", ["b", "a"]), ("match", ["a", "b"]), ("match", [])])


@INDEX.check("copies a block once")
def copies_once(answer: Any, draw: Draw) -> None:
    """A key that is held keeps its place, and None says so."""
    replay(answer, 3, [("store", ["a", "b"]), ("store", ["b", "c", "a"]), ("match", ["a", "b", "c"])])


@INDEX.check("gives up the block used longest ago")
def gives_up_the_oldest(answer: Any, draw: Draw) -> None:
    """Both calls count as use. The place of what was given up is the new block's."""
    replay(answer, 2, [("store", ["a"]), ("store", ["b"]), ("store", ["c"]), ("match", ["a"]), ("match", ["c"])])
    replay(answer, 2, [("store", ["a", "b"]), ("match", ["a"]), ("store", ["c"]), ("match", ["a"]), ("match", ["b"])])
    replay(answer, 2, [("store", ["a", "b"]), ("store", ["a"]), ("store", ["c"]), ("match", ["b"]), ("match", ["a"])])


@INDEX.check("gives up the end of a prefix first")
def end_first(answer: Any, draw: Draw) -> None:
    """After match(["a", "b", "c"]) all three are used, and "a" must stay longest: without it the others are useless."""
    calls = [("store", ["c", "b", "a"]), ("match", ["a", "b", "c"]), ("store", ["x"]), ("match", ["a", "b", "c"])]
    replay(answer, 3, [*calls, ("store", ["y"]), ("match", ["a", "b", "c"])])


@INDEX.check("agrees with a plain list, whatever comes", num_blocks=(1, 3, 8), num_calls=(12, 40, 120))
def any_history(answer: Any, draw: Draw, num_blocks: int, num_calls: int) -> None:
    """Play the calls by hand with a list of keys, the one used longest ago first."""
    calls = []
    for _ in range(num_calls):
        session, length = int(draw.integers(0, 4)), int(draw.integers(1, num_blocks + 1))
        keys: list[Any] = [(session, block) for block in range(length)]
        calls.append(("match", keys) if draw.integers(0, 2) else ("store", keys[::-1]))
    replay(answer, num_blocks, calls)
