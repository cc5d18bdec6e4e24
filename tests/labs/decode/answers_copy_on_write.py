"""Answers that prove the check of exercise 3.4."""

from twophase_labs.machine.bank import right, wrong

SHARES, LIST, ONLY = "shares every block", "has a list of its own", "copies only when it must"
COPIES, DAMAGE = "copies a shared partial block", "runs out without damage"

ONE_CONDITION = """
def fork(table):
    twin = type(table)(table.pool, table.block_size)
    for block_id in table.block_ids:
        table.pool.acquire(block_id)
    twin.block_ids, twin.num_tokens = table.block_ids.copy(), table.num_tokens
    return twin

def prepare_write(table):
    room = len(table.block_ids) * table.block_size - table.num_tokens
    if room > 0 and table.pool.ref_counts[table.block_ids[-1]] > 1:
        old = table.block_ids[-1]
        new = table.pool.allocate(1)[0]
        table.block_ids = [*table.block_ids[:-1], new]
        table.pool.release(old)
        return [(old, new)]
    return []
"""
DEEP_COPY = """
import copy

def fork(table):
    twin = copy.copy(table)
    twin.block_ids = table.block_ids[:]
    any(map(table.pool.acquire, twin.block_ids))
    return twin

def prepare_write(table):
    offset = table.num_tokens % table.block_size
    if not offset or table.pool.ref_counts[table.block_ids[-1]] < 2:
        return []
    pair = (table.block_ids[-1], *table.pool.allocate(1))
    table.pool.release(pair[0])
    table.block_ids[-1] = pair[1]
    return [pair]
"""

# fmt: off
BANKS = {
    "3.4": (
        wrong("takes no share", "table.block_ids:", "[]:", by=SHARES),
        wrong("looks at 32 blocks", ".block_ids:", ".block_ids[:10]:", by=SHARES),
        wrong("the same list", "list(table.block_ids)", "table.block_ids", by=LIST),
        wrong("copies full blocks too", "table.num_tokens % table.block_size == 0", "not table.block_ids", by=ONLY),
        wrong("needs a free block always", "is_new = table.num_tokens % table.block_size == 0",
              "if not table.pool.num_free:\n        raise OutOfBlocksError('')\n    is_new = table.num_tokens % table.block_size == 0",
              by=ONLY),
        wrong("target and source exchanged", "(shared, own", "(own, shared", by=COPIES),
        wrong("blocks of four", "table.num_tokens % table.block_size", "table.num_tokens % 4", by=COPIES),
        wrong("releases before it asks", "table.pool.release(shared)", "pass", "(own,) = table.pool",
              "table.pool.release(shared)\n    (own,) = table.pool", by=DAMAGE),
        right("one condition", ONE_CONDITION),
        right("a shallow copy of the table", DEEP_COPY),
    ),
}
