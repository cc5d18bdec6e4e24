"""Prefix caching: a store of blocks, lookup by prefix, and the order in which they are overwritten."""

from collections.abc import Sequence
from typing import Any

from twophase_labs.machine.checks import Draw, amount, compare, reject, unchanged
from twophase_labs.machine.exercise import exercise

STORE = exercise(
    "5.2", "Find, share, overwrite", "PrefixStore", points=4, minutes=14, lines=7, difficulty=3, time_limit_s=15
)
STORE.objective = "look up prefixes, share blocks, and overwrite the right one when there is no other"
STORE.hints = (
    "Three states: in use (`num_users` above 0, not in `free`), free and remembered, free and blank.",
    "`free` is in the order of overwriting: what stands first goes first, what is closed is added at its end.",
    "A block without what precedes it is worthless. So of one request's blocks the last should go first.",
)


@STORE.check("finds the longest known prefix")
def finds_longest_prefix(answer: Any, draw: Draw) -> None:
    """Go through the hashes in order, and stop at the first that is not known: what comes later could only be found
    by accident."""
    ledger = Ledger(answer.PrefixStore(8), 8)
    ledger.run("A", chain("a", 4))
    for hashes, expected in (
        (["a0", "a1", "a2", "a3"], 4),
        (["a0", "a1", "x2"], 2),
        (["x0", "a1", "a2"], 0),
        (["a0", "x1", "a2", "a3"], 1),
        ([], 0),
    ):
        expect_known(ledger, hashes, expected, "after a request with the blocks a0 a1 a2 a3")


@STORE.check("shares a block with each request that needs it")
def shares_blocks(answer: Any, draw: Draw) -> None:
    """A hit costs no new block: only another user of one that is there."""
    ledger = Ledger(answer.PrefixStore(6), 6)
    ledger.open("A", chain("a", 4))
    num_hit = ledger.open("B", chain("a", 4))
    if num_hit != 4 or ledger.in_use["A"] != ledger.in_use["B"]:
        reject(f"A and B have the same four blocks; A got {ledger.in_use['A']}, B {ledger.in_use['B']}")
    ledger.open("C", chain("c", 2))  # the pool's last two


@STORE.check("keeps what a request reads")
def keeps_what_is_read(answer: Any, draw: Draw) -> None:
    """A block that is hit must leave `free` before new ones are taken from it; and it comes back only when its last
    user has gone."""
    ledger = Ledger(answer.PrefixStore(6), 6)
    ledger.open("A", chain("a", 4))
    ledger.open("B", chain("a", 4))
    ledger.close("A")
    ledger.run("X", chain("x", 2))  # the blank ones are gone, and X's come after what A may have given back
    ledger.open("C", chain("c", 2))
    expect_known(ledger, chain("a", 4), 4, "A has ended, B still uses the same blocks, X and C came")
    ledger = Ledger(answer.PrefixStore(4), 4)
    ledger.run("A", chain("a", 3))
    ledger.run("X", chain("x", 1))
    ledger.open("C", chain("a", 3))  # they were free, and first in line
    ledger.open("D", chain("d", 1))
    expect_known(ledger, chain("a", 3), 3, "C uses a0 a1 a2, and D has just got the only other block")


@STORE.check("forgets what it overwrites")
def forgets(answer: Any, draw: Draw) -> None:
    """Once a block is overwritten, nobody may find its old contents there."""
    ledger = Ledger(answer.PrefixStore(4), 4)
    ledger.run("A", chain("a", 4))
    ledger.run("B", chain("b", 4))
    expect_known(ledger, chain("a", 4), 0, "a pool of four blocks, all overwritten by B")
    expect_known(ledger, chain("b", 4), 4, "a pool of four blocks, all written by B")


@STORE.check("overwrites the least recently used")
def overwrites_the_oldest(answer: Any, draw: Draw) -> None:
    """The first of `free` has been unused for longest, if those that are closed are added at its end."""
    ledger = Ledger(answer.PrefixStore(6), 6)
    for name in "abc":
        ledger.run(name, chain(name, 2))
    ledger.run("again", chain("a", 2))
    ledger.run("D", chain("d", 2))
    expect_known(ledger, chain("b", 2), 0, "a, b, c, then a again, then d in a pool for three of them")
    expect_known(ledger, chain("a", 2), 2, "a, b, c, then a again, then d in a pool for three of them")
    expect_known(ledger, chain("c", 2), 2, "a, b, c, then a again, then d in a pool for three of them")


@STORE.check("overwrites the end of a prefix before its beginning", num_new=(1, 2, 3))
def overwrites_ends_first(answer: Any, draw: Draw, num_new: int) -> None:
    """If a0 is overwritten first, nobody finds a1, a2 and a3 any more, though they are there. In which order must a
    request's blocks be added to `free`?"""
    ledger = Ledger(answer.PrefixStore(4), 4)
    ledger.run("A", chain("a", 4))
    ledger.run("B", chain("b", num_new))
    story = f"{num_new} of A's four blocks {'was' if num_new == 1 else 'were'} overwritten"
    expect_known(ledger, chain("a", 4), 4 - num_new, story)


class Ledger:
    """What is really in each block, and who uses it, whatever the learner's store believes."""

    def __init__(self, store: Any, num_blocks: int) -> None:
        self.store = store
        self.contents: list[str | None] = [None] * num_blocks
        self.in_use: dict[str, list[int]] = {}
        self.hashes: dict[str, list[str]] = {}

    def open(self, name: str, hashes: Sequence[str], num_blocks: int | None = None) -> int:
        """Open a request, see that its blocks are right; returns how many of them were hits."""
        num_blocks = len(hashes) if num_blocks is None else num_blocks
        theirs = list(hashes)
        try:
            with unchanged(hashes=theirs):
                got = self.store.open(theirs, num_blocks)
        except KeyError as error:
            reject(f"open fails with KeyError: {error}: there is no free block left, or a hash was forgotten "
                   "twice, or a block that is in use was looked for in `free`")  # fmt: skip
        if not isinstance(got, tuple) or len(got) != 2 or len(got[0]) != num_blocks:
            reject(f"open gave {got!r}, expected ({amount(num_blocks, 'block id')}, number of hits)")
        blocks, num_hit = list(got[0]), got[1]
        if len(set(blocks)) < len(blocks):
            reject(f"request {name} got a block twice: {blocks}", f"hits among them: {num_hit}")
        for block, one in zip(blocks[:num_hit], hashes, strict=False):
            if self.contents[block] != one:
                reject(f"block {block} is a hit for {one}, and {self.contents[block] or 'nothing'} was written to it")
        taken = {block: other for other, used in self.in_use.items() for block in used}
        for block in blocks[num_hit:]:
            if block in taken:
                reject(f"block {block} is given to {name} to be overwritten, and {taken[block]} still uses it")
        for index in range(num_hit, num_blocks):
            self.contents[blocks[index]] = hashes[index] if index < len(hashes) else None
        self.in_use[name], self.hashes[name] = blocks, list(hashes)
        return num_hit

    def close(self, name: str) -> None:
        blocks, hashes = self.in_use.pop(name), self.hashes.pop(name)
        with unchanged(blocks=blocks, hashes=hashes):
            self.store.close(blocks, hashes)

    def run(self, name: str, hashes: Sequence[str], num_blocks: int | None = None) -> int:
        """Open and close."""
        num_hit = self.open(name, hashes, num_blocks)
        self.close(name)
        return num_hit

    def num_known(self, hashes: Sequence[str]) -> int:
        """How many of a chain's blocks lookup finds, each one seen to hold what it should."""
        theirs = list(hashes)
        with unchanged(hashes=theirs):
            blocks = self.store.lookup(theirs)
        if not isinstance(blocks, list) or len(blocks) > len(hashes):
            reject(f"lookup of {amount(len(hashes), 'hash', 'hashes')} gave {blocks!r}, expected a list of block ids")
        for block, one in zip(blocks, hashes, strict=False):
            if self.contents[block] != one:
                reject(f"lookup gave block {block} for {one}; it holds {self.contents[block] or 'nothing'}")
        return len(blocks)


def chain(name: str, num_blocks: int) -> list[str]:
    return [f"{name}{index}" for index in range(num_blocks)]


def expect_known(ledger: Ledger, hashes: Sequence[str], expected: int, story: str) -> None:
    got = ledger.num_known(hashes)
    if got != expected:
        reject(f"{story}: lookup of {' '.join(hashes)} finds {amount(got, 'block')}, expected {expected}")


@STORE.check("gives the examples of the text")
def knows_the_example(answer: Any, draw: Draw) -> None:
    """Of the second request one block is known: a0."""
    ledger = Ledger(answer.PrefixStore(4), 4)
    for name, hashes, num_blocks, num_hit in (("A", ["a0", "a1"], 3, 0), ("B", ["a0", "b1"], 2, 1)):
        what = f"the number of hits of open({hashes}, {num_blocks}) in the text's example"
        compare(ledger.open(name, hashes, num_blocks), num_hit, what=what)


@STORE.check("finds long prefixes")
def finds_long_prefixes(answer: Any, draw: Draw) -> None:
    """A prompt may have hundreds of blocks, and a pool knows what was written to it, not to another."""
    # Two stores at once, with prompts of hundreds of blocks.
    one, other = Ledger(answer.PrefixStore(400), 400), Ledger(answer.PrefixStore(5), 5)
    one.run("A", chain("a", 300))
    other.run("B", chain("b", 5))
    expect_known(one, chain("a", 300), 300, "after a request of 300 blocks in a pool of 400")
    compare(one.run("A", chain("a", 300)), 300, what="the number of hits of the same request again")
    expect_known(other, chain("a", 3), 0, "in another pool")
    expect_known(other, chain("b", 5), 5, "in another pool")


class Plain:
    """The oracle: looks at every block each time, and keeps a date of its last use."""

    def __init__(self, num_blocks: int) -> None:
        self.holds: list[Any] = [None] * num_blocks
        self.freed = [-1] * num_blocks
        self.users = [0] * num_blocks
        self.clock = 0

    def lookup(self, hashes: Sequence[Any]) -> list[int]:
        blocks: list[int] = []
        for one in hashes:
            if one not in self.holds:
                break
            blocks.append(self.holds.index(one))
        return blocks

    def open(self, hashes: Sequence[Any], num_blocks: int) -> tuple[list[int], int]:
        blocks = self.lookup(hashes)
        num_hit = len(blocks)
        for block in blocks:
            self.users[block] += 1
        for index in range(num_hit, num_blocks):
            free = [block for block in range(len(self.users)) if not self.users[block]]
            block = min(free, key=lambda b: (self.holds[b] is not None, self.freed[b]))
            self.holds[block] = hashes[index] if index < len(hashes) else None
            self.users[block] = 1
            blocks.append(block)
        return blocks, num_hit

    def close(self, blocks: Sequence[int], hashes: Sequence[Any] = ()) -> None:
        for block in reversed(blocks):
            self.users[block] -= 1
            self.clock += 1
            self.freed[block] = self.clock


@STORE.check("agrees with a plain store for long", num_blocks=(8, 16, 24), num_events=(60, 300, 600))
def agrees_for_long(answer: Any, draw: Draw, num_blocks: int, num_events: int) -> None:
    """Some mixture of requests goes wrong; the details name the first one."""
    # Conversations that share beginnings come and go; the store sees what a plain one sees.
    ledger, plain = Ledger(answer.PrefixStore(num_blocks), num_blocks), Plain(num_blocks)
    plain_blocks: dict[str, list[int]] = {}
    for event in range(num_events):
        num_free = sum(1 for users in plain.users if not users)
        if ledger.in_use and (num_free < 5 or draw.integer(0, 2)):
            name = draw.choice(sorted(ledger.in_use))
            ledger.close(name)
            plain.close(plain_blocks.pop(name))
            continue
        depth, family = draw.integer(1, 5), draw.integer(0, 4)
        hashes = [f"f{family}.{index}" for index in range(min(depth, 2))]
        hashes += [f"{hashes[-1]}.{draw.integer(0, 3)}.{index}" for index in range(depth - len(hashes))]
        hashes = ["/".join(hashes[: index + 1]) for index in range(depth)]  # a chain: each name tells the past
        num_needed = depth + draw.integer(0, 2)  # a last block that is not full has no hash
        name = f"request {event}"
        plain_blocks[name], expected = plain.open(hashes, num_needed)
        got = ledger.open(name, hashes, num_needed)
        if got != expected:
            reject(
                f"{name} found {amount(got, 'block')} of {depth}, a plain store finds {expected}",
                f"pool of {num_blocks}",
            )
    Ledger(answer.PrefixStore(100), 100).run("long", chain("a", 70), 90)
