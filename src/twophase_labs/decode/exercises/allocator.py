"""3.2 The memory of decoding: a pool of blocks, a table per sequence, and an oracle that watches both."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase_labs.decode.block_pictures import draw_history
from twophase_labs.decode.histories import History
from twophase_labs.decode.shadow import Finding, WatchedPool
from twophase_labs.kit.weights_map import figure_png
from twophase_labs.machine.checks import Draw, compare, integers, raises, reject
from twophase_labs.machine.exercise import cases, exercise
from twophase_labs.machine.questions import Matching

POOLS = cases(num_blocks=(2, 5, 30, 300))

POOL = exercise("3.2", "A pool of blocks", "BlockPool", points=5, minutes=10, lines=16, difficulty=2, time_limit_s=10)
POOL.objective = "hand out, share and take back fixed-size blocks"
POOL.hints = (
    "Play it on paper with three blocks: allocate 2, acquire one, release it twice. Which two things do you write "
    "down for the pool?",
    "A list of free blocks, and a count of owners per block. Each method tests first and changes afterwards; "
    "`release` counts down, and only at zero does the block become free.",
    "def __init__(self, num_blocks):\n    self.ref_counts = [0] * num_blocks\n    self.free_ids = ...\n"
    "def allocate(self, n):\n    if ...: raise OutOfBlocksError(...)\n    block_ids = [... for _ in range(n)]\n"
    "    ...  # one owner each\n    return block_ids\n"
    "def release(self, block_id):\n    if ...: raise CacheStateError(...)\n    ...  # count down; free at zero",
)


def taken_from(pool: Any, n: int, num_blocks: int) -> list[int]:
    """allocate(n), whose result must be a list of n blocks of this pool."""
    returned = pool.allocate(n)
    got = integers(returned)
    if got is None or not isinstance(returned, list):
        reject(f"allocate({n}) returned {returned!r}, expected a list of block ids")
    if len(got) != n:
        reject(f"allocate({n}) returned {len(got)} blocks: {got}")
    outside = [b for b in got if not 0 <= b < num_blocks]
    if outside:
        reject(f"allocate({n}) returned block {outside[0]}; the pool has blocks 0 to {num_blocks - 1}")
    return got


def compare_owners(pool: Any, expected: list[int], what: str) -> None:
    """Reject a pool whose `ref_counts` are not these; a list, a dictionary or an array may hold them."""
    counts = getattr(pool, "ref_counts", None)
    if counts is None:
        reject("the pool has no `ref_counts`", "the docstring names it; copy-on-write and the oracle read it")
    compare([owners_of(counts, block) for block in range(len(expected))], expected, what=what, axes=("block",))


def owners_of(counts: Any, block: int) -> Any:
    try:
        return integers([counts[block]])[0]  # type: ignore[index]
    except (KeyError, IndexError):
        return 0  # a dictionary of those in use
    except TypeError:
        reject(f"ref_counts[{block}] is {counts[block]!r}, expected a whole number")


@POOL.check("gives out blocks that are free", *POOLS)
def gives_blocks_of_its_own(answer: Any, draw: Draw, num_blocks: int) -> None:
    """Take the ids off the list of free ones, n of them."""
    pool, other = answer.BlockPool(num_blocks), answer.BlockPool(num_blocks + 1)
    taken_from(other, num_blocks, num_blocks + 1)  # another pool's blocks are another pool's
    given: list[int] = []
    while len(given) < num_blocks:
        given += taken_from(pool, min(draw.integer(1, 4), num_blocks - len(given)), num_blocks)
        twice = [b for b, count in Counter(given).items() if count > 1]
        if twice:
            reject(f"block {twice[0]} was given out twice, and was never released", f"given so far: {given}")


@POOL.check("counts owners and free blocks", *POOLS)
def counts(answer: Any, draw: Draw, num_blocks: int) -> None:
    """A block that was just given out has one owner; a free one has none."""
    pool = answer.BlockPool(num_blocks)
    compare(pool.num_free, num_blocks, what="num_free of a new pool")
    compare_owners(pool, [0] * num_blocks, "ref_counts of a new pool")
    given = taken_from(pool, num_blocks - 1, num_blocks)
    compare(pool.num_free, 1, what=f"num_free after {num_blocks - 1} of {num_blocks} were taken")
    expected = [int(block in given) for block in range(num_blocks)]
    compare_owners(pool, expected, "ref_counts after allocate")
    compare(taken_from(pool, 0, num_blocks), [], what="allocate(0)")


@POOL.check("runs out without damage", *POOLS)
def runs_out_unharmed(answer: Any, draw: Draw, num_blocks: int) -> None:
    """Compare with `num_free` before taking the first block, not in between. All that are free may be taken."""
    pool = answer.BlockPool(num_blocks)
    num_taken = draw.integer(1, num_blocks)
    taken = taken_from(pool, num_taken, num_blocks)
    before = [int(block in taken) for block in range(num_blocks)]
    raises(OutOfBlocksError, pool.allocate, num_blocks - num_taken + 1)
    left = num_blocks - num_taken
    compare(pool.num_free, left, what=f"num_free after a refused allocate({left + 1})")
    compare_owners(pool, before, "ref_counts after a refused allocate")
    taken_from(pool, left, num_blocks)


@POOL.check("takes blocks back", *POOLS)
def gives_back(answer: Any, draw: Draw, num_blocks: int) -> None:
    """A block whose last owner released it is free for the next."""
    pool = answer.BlockPool(num_blocks)
    for _ in range(6):
        given = taken_from(pool, num_blocks, num_blocks)
        for number, block in enumerate(draw.permutation(num_blocks).tolist()):
            pool.release(given[block])
            compare(pool.num_free, number + 1, what=f"num_free after {number + 1} of {num_blocks} were released")


@POOL.check("keeps a block as long as it has an owner", num_owners=(2, 5, 300))
def keeps_what_is_shared(answer: Any, draw: Draw, num_owners: int) -> None:
    """Every acquire adds an owner, every release takes one away. Free it at zero, not before."""
    pool = answer.BlockPool(4)
    (block,) = taken_from(pool, 1, 4)
    for _ in range(num_owners - 1):
        pool.acquire(block)
    compare_owners(pool, [num_owners * (b == block) for b in range(4)], f"ref_counts with {num_owners} owners of one")
    compare(pool.num_free, 3, what="num_free while the block is shared")
    for left in range(num_owners - 1, 0, -1):
        pool.release(block)
        compare_owners(pool, [left * (b == block) for b in range(4)], f"ref_counts with {left} owners left")
        compare(pool.num_free, 3, what=f"num_free with {left} owners of the block left")
    pool.release(block)
    compare(pool.num_free, 4, what="num_free after the last owner released it")


@POOL.check("refuses to free a free block")
def refuses_a_double_free(answer: Any, draw: Draw) -> None:
    """Freed twice, a block would be in the list twice, and later belong to two sequences. And a free block has no
    contents to share: `acquire` refuses it as well."""
    pool = answer.BlockPool(3)
    first, second = taken_from(pool, 2, 3)
    pool.release(first)
    raises(CacheStateError, pool.release, first)
    compare(pool.num_free, 2, what="num_free after a refused release")
    compare_owners(pool, [int(b == second) for b in range(3)], "ref_counts after a refused release")
    raises(CacheStateError, pool.acquire, first)
    compare(pool.num_free, 2, what="num_free after a refused acquire")
    compare_owners(pool, [int(b == second) for b in range(3)], "ref_counts after a refused acquire")
    pool.release(second)
    compare(pool.num_free, 3, what="num_free after the other block, owned once, was released")


@POOL.check("keeps its books over a random history", num_blocks=(3, 12))
def keeps_its_books(answer: Any, draw: Draw, num_blocks: int) -> None:
    """Allocated, shared and released in any order, counts and list must agree; and each pool has its own."""
    pool, other = answer.BlockPool(num_blocks), answer.BlockPool(1)
    owned: Counter[int] = Counter()
    for number in range(200):
        if number == 100:  # a second pool opens while the first is in use, and takes nothing from it
            other = answer.BlockPool(num_blocks)
        in_use = sorted(block for block, count in owned.items() if count)
        event = draw.choice(("allocate", "acquire", "release", "release"))
        if event == "allocate":
            n = draw.integer(0, 4)
            if n > num_blocks - len(in_use):
                raises(OutOfBlocksError, pool.allocate, n)
                continue
            for block in taken_from(pool, n, num_blocks):
                if owned[block]:
                    reject(f"allocate gave out block {block}, which has {owned[block]} owners")
                owned[block] += 1
        elif in_use:
            block = draw.choice(in_use)
            getattr(pool, event)(block)
            owned[block] += 1 if event == "acquire" else -1
        compare_owners(pool, [owned[b] for b in range(num_blocks)], "ref_counts")
        compare(pool.num_free, num_blocks - sum(1 for c in owned.values() if c), what="num_free")
    compare_owners(other, [0] * num_blocks, "ref_counts of a second pool, in which nothing was taken,")
    compare(other.num_free, num_blocks, what="num_free of a second pool, in which nothing was taken,")


@POOL.check("gives away its lists for good", num_taken=(0, 2))
def leaves_lists_to_their_owners(answer: Any, draw: Draw, num_taken: int) -> None:
    """The list that allocate returns is the caller's, who may add to it or empty it. Keep another one."""
    # A table adds its next blocks to the list it got, and empties it in the end: that is the table's business.
    pool = answer.BlockPool(9)
    before = taken_from(pool, num_taken, 9)
    given = pool.allocate(3)
    blocks = list(given)
    given += pool.allocate(2)
    given.reverse()
    what = "once the caller had added to the list that allocate gave it"
    compare(pool.num_free, 4 - num_taken, what=f"num_free, {what},")
    compare_owners(pool, [int(b in before or b in given) for b in range(9)], f"ref_counts, {what},")
    more = taken_from(pool, 4 - num_taken, 9)
    if twice := set(more) & {*before, *given}:
        reject(f"block {min(twice)} was given out twice, {what}", "Return a new list, and keep another for yourself.")
    given.clear()
    for block in blocks:
        pool.release(block)
    compare(pool.num_free, 3, what="num_free after three releases, once the caller had emptied its list,")


BLOCK_SIZES = cases(block_size=(1, 4, 7))

TABLE = exercise(
    "3.3", "A table that grows on demand", "BlockTable", points=5, minutes=8, lines=15, difficulty=2, time_limit_s=10
)
TABLE.objective = "map positions to slots, and grow by a block at a time"
TABLE.hints = (
    "The picture: 7 tokens, blocks of 4. How many blocks? And for 8, for 9?",
    "Round up: `-(-num_tokens // block_size)`. Ask the pool for the missing ones before anything of the table "
    "changes, and add them at the end of `block_ids`.",
    "def grow(self, num_tokens):\n    if ...: raise CacheStateError(...)\n    num_missing = ...\n"
    "    self.block_ids = self.block_ids + self.pool.allocate(num_missing)\n    self.num_tokens = ...\n"
    "def slot(self, position):\n    if ...: raise IndexError(...)\n    block_id = self.block_ids[...]\n"
    "    return ...\ndef free(self):\n    ...  # release each block once, then forget them",
)


def new_table(answer: Any, draw: Draw, num_blocks: int, block_size: int) -> tuple[Any, WatchedPool]:
    pool = WatchedPool(num_blocks, draw.integer(0, 10**6))
    return answer.BlockTable(pool, block_size), pool


@TABLE.check("takes blocks on demand", *BLOCK_SIZES)
def takes_blocks_on_demand(answer: Any, draw: Draw, block_size: int) -> None:
    """As many blocks as the tokens need, rounded up; take from the pool only those that are missing."""
    table, pool = new_table(answer, draw, 6, block_size)
    compare(table.num_tokens, 0, what="num_tokens of a new table")
    for num_tokens in range(6 * block_size + 1):
        try:
            table.grow(num_tokens)
        except OutOfBlocksError:
            reject(f"{num_tokens} tokens do not fit into 6 blocks of {block_size}", f"blocks {table.block_ids}")
        needed = (num_tokens + block_size - 1) // block_size
        what = f"the number of blocks for {num_tokens} tokens, block size {block_size},"
        compare(len(table.block_ids), needed, what=what)
        compare(6 - pool.num_free, needed, what="the number of blocks taken from the pool")
        compare(table.num_tokens, num_tokens, what="num_tokens")
        if not isinstance(table.block_ids, list):
            kind = type(table.block_ids).__name__
            reject(f"block_ids is a {kind}, expected a list", "Copy-on-write will put another block in a place of it.")


@TABLE.check("keeps the blocks it has", lengths=((7, 8, 9), (3, 17, 17, 40), (270, 275)))
def keeps_its_blocks(answer: Any, draw: Draw, lengths: tuple[int, ...]) -> None:
    """What was written stays where it is: new blocks come after the old ones."""
    table, _ = new_table(answer, draw, 80, 4)
    held: list[int] = []
    for num_tokens in lengths:
        table.grow(num_tokens)
        if list(table.block_ids[: len(held)]) != held:
            reject(f"growing to {num_tokens} tokens changed the first blocks: {held} became {table.block_ids}")
        held = list(table.block_ids)
        compare(len(held), -(-num_tokens // 4), what=f"the number of blocks for {num_tokens} tokens, block size 4,")


@TABLE.check("finds the slot of a position", *BLOCK_SIZES)
def finds_the_slot(answer: Any, draw: Draw, block_size: int) -> None:
    """First which block of the table, then its id times the block size, then the offset."""
    table, pool = new_table(answer, draw, 40, block_size)
    other = answer.BlockTable(pool, block_size)
    other.grow(block_size)  # another sequence takes blocks of the same pool
    table.grow(30 * block_size + 1)
    for position in range(30 * block_size + 1):
        index, offset = 0, position  # walk along the blocks, instead of dividing
        while offset >= block_size:
            index, offset = index + 1, offset - block_size
        expected = table.block_ids[index] * block_size + offset
        what = f"the slot of position {position} in blocks {list(table.block_ids)} of {block_size} slots"
        compare(table.slot(position), expected, what=what)


@TABLE.check("runs out without damage", num_tokens=(1, 7))
def grows_or_stays(answer: Any, draw: Draw, num_tokens: int) -> None:
    """The pool raises before it takes; so change nothing of your own before you have asked it."""
    table, pool = new_table(answer, draw, 5, 4)
    other = answer.BlockTable(pool, 4)
    other.grow(9)
    table.grow(num_tokens)
    before = (list(table.block_ids), table.num_tokens, list(pool.ref_counts))
    raises(OutOfBlocksError, table.grow, 9)
    after = (list(table.block_ids), table.num_tokens, list(pool.ref_counts))
    for what, was, now in zip(("block_ids", "num_tokens", "the reference counts"), before, after, strict=True):
        if was != now:
            reject(f"a grow that ran out of blocks changed {what}: {was} became {now}")


@TABLE.check("refuses to shrink", num_tokens=(1, 4, 9, 0))
def refuses_to_shrink(answer: Any, draw: Draw, num_tokens: int) -> None:
    """`grow` with fewer tokens than there are raises CacheStateError; with as many it does nothing."""
    table, pool = new_table(answer, draw, 6, 4)
    table.grow(num_tokens)
    before = (list(table.block_ids), table.num_tokens, pool.num_free)
    for fewer in sorted({num_tokens - 1, 0, -1} - {num_tokens}):
        raises(CacheStateError, table.grow, fewer)
        after = (list(table.block_ids), table.num_tokens, pool.num_free)
        compare(after[1:], before[1:], what=f"(num_tokens, free blocks) after a refused grow({fewer})")
    table.grow(num_tokens)  # as many as there are: nothing to do
    compare(list(table.block_ids), before[0], what=f"block_ids after growing from {num_tokens} tokens to {num_tokens}")


class NotesReleases(WatchedPool):
    """Knows whether it was asked: a pool with a list of free blocks does not see what is written into its counts."""

    num_releases = 0

    def release(self, block_id: int) -> None:
        super().release(block_id)
        self.num_releases += 1


@TABLE.check("gives every block back", num_tokens=(1, 10))
def gives_every_block_back(answer: Any, draw: Draw, num_tokens: int) -> None:
    """Release each block once, the last and partial one too; then forget them, and the length."""
    pool = NotesReleases(6, draw.integer(0, 10**6))
    table = answer.BlockTable(pool, 4)
    table.grow(num_tokens)
    shared = table.block_ids[0]
    pool.acquire(shared)
    table.free()
    compare(pool.num_free, 5, what="the number of free blocks (another sequence holds one of six)")
    compare(pool.ref_counts[shared], 1, what="the reference count of the shared block")
    compare(pool.num_releases, -(-num_tokens // 4), what=f"how often free, with {num_tokens} tokens, called release")
    compare((list(table.block_ids), table.num_tokens), ([], 0), what="(block_ids, num_tokens) after free")
    table.free()
    table.grow(1)
    compare(len(table.block_ids), 1, what="the number of blocks when the table is used again")


def survives(run: Callable[[int, int, int], History], draw: Draw, num_blocks: int, block_size: int) -> None:
    """Random histories; a finding is told with what led to it, and a picture."""
    for _ in range(12):
        history = run(num_blocks, block_size, draw.integer(0, 10**6))
        try:
            history.run(30)
        except Finding as finding:
            title = f"Who held which of {num_blocks} blocks of {block_size} slots, until it was noticed"
            picture = figure_png(draw_history(history.frames, num_blocks, title)) if history.frames else b""
            reject(str(finding), "before that:", *history.events[-6:], picture=picture)


@TABLE.check("survives random histories", num_blocks=(4, 8, 40), block_size=(1, 4, 3))
def survives_histories(answer: Any, draw: Draw, num_blocks: int, block_size: int) -> None:
    """The picture shows who held which block. Whose tokens were written over, and when?"""

    def run(num_blocks: int, block_size: int, seed: int) -> History:
        pool = WatchedPool(num_blocks, seed)
        return History(pool, answer.BlockTable, num_blocks=num_blocks, block_size=block_size, seed=seed)

    survives(run, draw, num_blocks, block_size)


@TABLE.check("has no slot for a position without a token", num_tokens=(1, 7, 10))
def has_no_slot_beyond(answer: Any, draw: Draw, num_tokens: int) -> None:
    """Only positions from 0 to num_tokens - 1 have slots, though the last block may have room for more."""
    # A position without a token has no slot, even if the last block has room for it; nor has a negative one.
    table, _ = new_table(answer, draw, 7, 5)
    table.grow(num_tokens)
    for position in (num_tokens, num_tokens + 1, 35, -1):
        raises(IndexError, table.slot, position)


ANSWER_3_5 = exercise("3.5", "Find the bug", kind="matching", points=3, minutes=8, difficulty=2, is_extra=True)
ANSWER_3_5.objective = "foresee what a bug in an allocator looks like from outside"
ANSWER_3_5.question = Matching(
    "abcdef",
    {
        "table 1": "d",
        "table 2": "a",
        "table 3": "e",
        "pool 1": "f",
        "pool 2": "c",
        "layer": "b",
    },
    hint="Walk through the nine events with each of them. The tables differ at events 2 and 4, the pools at "
    "events 4 and 9.",
)
