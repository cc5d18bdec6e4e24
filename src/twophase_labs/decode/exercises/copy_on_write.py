"""3.4 Copy-on-write: one text goes on in several ways."""

from typing import Any

from twophase.core.errors import OutOfBlocksError
from twophase_labs.decode.exercises.allocator import survives
from twophase_labs.decode.histories import History
from twophase_labs.decode.shadow import PlainTable, WatchedPool
from twophase_labs.machine.checks import Draw, compare, raises, reject
from twophase_labs.machine.exercise import exercise

COPY = exercise(
    "3.4", "Fork, and copy before writing", "fork prepare_write", points=4, minutes=9, lines=5, difficulty=3
)
COPY.time_limit_s = 10
COPY.objective = "share what is equal, copy what becomes different"
COPY.hints = (
    "Play the picture: two tables share a block that is half full, and both are about to write.",
    "Three questions in a row: is there a block to write into, is it shared, is there a block for the copy?",
    "Allocate first (it may raise), then release the shared block and put the new one in its place.",
)


def table_of(draw: Draw, num_tokens: int, num_blocks: int = 12, block_size: int = 4) -> PlainTable:
    """A table of blocks of 4 slots, in a pool of its own."""
    table = PlainTable(WatchedPool(num_blocks, draw.integer(0, 10**6)), block_size)
    table.grow(num_tokens)
    return table


def forked(answer: Any, table: PlainTable) -> Any:
    twin = answer.fork(table)
    if twin is None or not hasattr(twin, "block_ids"):
        reject(f"fork returned {twin!r}, expected a table")
    if twin is table:
        reject("fork returned the table itself, not a second one")
    return twin


def copies_of(answer: Any, table: Any) -> list[tuple[int, int]]:
    got = answer.prepare_write(table)
    if not isinstance(got, list | tuple) or any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in got):
        reject(f"prepare_write returned {got!r}, expected a list of pairs (source, target)")
    return [(int(source), int(target)) for source, target in got]


def books(table: Any) -> tuple[list[int], int, list[int]]:
    return list(table.block_ids), table.num_tokens, list(table.pool.ref_counts)


@COPY.check("shares every block", num_tokens=(4, 6, 11, 0, 47))
def shares_every_block(answer: Any, draw: Draw, num_tokens: int) -> None:
    """A fork takes no block; each block it shares has one owner more, the partial one too."""
    table = table_of(draw, num_tokens)
    held, num_free = list(table.block_ids), table.pool.num_free
    twin = forked(answer, table)
    compare(list(twin.block_ids), held, what="the twin's block ids", axes=("block of the sequence",))
    compare(twin.num_tokens, num_tokens, what="the twin's num_tokens")
    compare(table.pool.num_free, num_free, what="the number of free blocks after a fork")
    for block in held:
        compare(table.pool.ref_counts[block], 2, what=f"the reference count of block {block} after a fork")
    compare(list(table.block_ids), held, what="the first table's block ids", axes=("block of the sequence",))


@COPY.check("has a list of its own")
def has_its_own_list(answer: Any, draw: Draw) -> None:
    """Both tables go on growing, each by blocks of its own. `list(...)` makes a second list."""
    table = table_of(draw, 8)
    twin = forked(answer, table)
    twin.grow(9)
    if len(table.block_ids) != 2:
        reject(
            f"the twin grew by a block, and the first table has {len(table.block_ids)} blocks instead of 2",
            "A list that is assigned is the same list.",
        )
    twin.free()
    compare(len(table.block_ids), 2, what="the number of blocks of the first table after the twin was freed")
    compare([table.pool.ref_counts[b] for b in table.block_ids], [1, 1], what="their reference counts")


@COPY.check("copies only when it must", case=("empty", "not shared", "full", "full and shared"))
def copies_only_when_it_must(answer: Any, draw: Draw, case: str) -> None:
    """A full block is never written again, and a block with one owner may be written."""
    # There is no free block either, which must not matter.
    table = table_of(draw, {"empty": 0, "not shared": 6, "full": 8, "full and shared": 8}[case], num_blocks=2)
    if case == "empty":
        table.pool.allocate(2)
    if case == "full and shared":
        for block in table.block_ids:
            table.pool.acquire(block)
    before = books(table)
    try:
        got = copies_of(answer, table)
    except OutOfBlocksError:
        reject("nothing has to be copied, and prepare_write wants a free block", f"table of {table.num_tokens} tokens")
    sentence = {
        "empty": "an empty table",
        "not shared": "6 tokens in blocks of 4 that nobody else holds",
        "full": "8 tokens in blocks of 4: the next token needs a new block",
        "full and shared": "8 tokens in shared blocks of 4: the next token needs a new block, these stay as they are",
    }[case]
    if got or books(table) != before:
        reject(
            f"nothing has to be copied, and prepare_write returned {got}",
            sentence,
            f"blocks {before[0]} became {books(table)[0]}",
        )


@COPY.check(
    "copies a shared partial block",
    {"num_tokens": 1},
    {"num_tokens": 6},
    {"num_tokens": 11},
    {"num_tokens": 8, "block_size": 7},
    {"num_tokens": 190, "block_size": 12},
)
def copies_a_shared_block(answer: Any, draw: Draw, num_tokens: int, block_size: int = 4) -> None:
    """The last block is where the next token would go. The table gets a block of its own in its place, and the
    shared one has one owner less; the pair is (source, target)."""
    table = table_of(draw, num_tokens, 40, block_size)
    for block in table.block_ids:
        table.pool.acquire(block)
    held = list(table.block_ids)
    num_free = table.pool.num_free
    got = copies_of(answer, table)
    if not got:
        reject(
            f"prepare_write returned no copy; the next token would be written into block {held[-1]}, which is shared",
            f"{num_tokens} tokens in blocks of {block_size}, every block held twice",
        )
    compare(len(got), 1, what="the number of copies")
    source, target = got[0]
    if target in held:
        reject(f"the copy goes from block {source} to block {target}, which is the shared one", f"blocks were {held}")
    compare(source, held[-1], what="the source of the copy")
    compare(list(table.block_ids), [*held[:-1], target], what="the table's blocks", axes=("block of the sequence",))
    compare(table.num_tokens, num_tokens, what="num_tokens, before the token is written,")
    compare(table.pool.ref_counts[target], 1, what="the reference count of the copy")
    compare(table.pool.ref_counts[source], 1, what="the reference count of the block that was shared")
    compare(table.pool.num_free, num_free - 1, what="the number of free blocks")


@COPY.check("lets the last owner write in place", num_owners=(2, 5))
def leaves_the_last_owner(answer: Any, draw: Draw, num_owners: int) -> None:
    """The table that copies gives up its share. When all others have left, the block has one owner again."""
    tables = [table_of(draw, 6)]
    for _ in range(num_owners - 1):
        twin = PlainTable(tables[0].pool, 4)
        twin.block_ids, twin.num_tokens = list(tables[0].block_ids), 6
        for block in twin.block_ids:
            twin.pool.acquire(block)
        tables.append(twin)
    copies = [len(copies_of(answer, table)) for table in tables]
    expected = [1] * (num_owners - 1) + [0]
    compare(copies, expected, what=f"the copies of {num_owners} owners, one after another,", axes=("owner",))


@COPY.check("runs out without damage")
def runs_out_unharmed(answer: Any, draw: Draw) -> None:
    """`allocate` raises when there is no block. Ask it before you release anything."""
    table = table_of(draw, 6, num_blocks=2)
    for block in table.block_ids:
        table.pool.acquire(block)
    before = books(table)
    raises(OutOfBlocksError, answer.prepare_write, table)
    for what, was, now in zip(("block ids", "num_tokens", "reference counts"), before, books(table), strict=True):
        if was != now:
            reject(f"prepare_write ran out of blocks and changed the {what}: {was} became {now}")


@COPY.check("survives random histories", num_blocks=(6, 10), block_size=(2, 4))
def survives_histories(answer: Any, draw: Draw, num_blocks: int, block_size: int) -> None:
    """The picture shows which sequence held which block. Which wrote into a block that another was reading?"""

    def run(num_blocks: int, block_size: int, seed: int) -> History:
        return History(
            WatchedPool(num_blocks, seed),
            PlainTable,
            num_blocks=num_blocks,
            block_size=block_size,
            seed=seed,
            fork=answer.fork,
            prepare_write=answer.prepare_write,
        )

    survives(run, draw, num_blocks, block_size)
