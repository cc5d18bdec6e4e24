"""Answers that prove the check of exercise 3.5."""

from tests.labs.decode.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

SHARES, LIST, ONLY, COPIES, LAST, DAMAGE, HISTORIES = (
    "shares every block",
    "has a list of its own",
    "copies only when it must",
    "copies a shared partial block",
    "lets the last owner write in place",
    "runs out without damage",
    "survives random histories",
)
FORK = """
def fork(table):
    twin = type(table)(table.pool, table.block_size)
    for block_id in table.block_ids:
        table.pool.acquire(block_id)
    twin.block_ids, twin.num_tokens = table.block_ids.copy(), table.num_tokens
    return twin
"""
RELEASES_FIRST = f"""{FORK}

def prepare_write(table):
    if table.num_tokens % table.block_size == 0:
        return []
    shared = table.block_ids[-1]
    if table.pool.ref_counts[shared] == 1:
        return []
    table.pool.release(shared)
    table.block_ids[-1] = table.pool.allocate(1)[0]
    return [(shared, table.block_ids[-1])]
"""
COPIES_EAGERLY = """
def fork(table):
    twin = type(table)(table.pool, table.block_size)
    twin.grow(table.num_tokens)
    return twin


def prepare_write(table):
    return []
"""
COPIES_EVERYTHING = f"""{FORK}

def prepare_write(table):
    copies = []
    for index, block_id in enumerate(table.block_ids):
        if table.pool.ref_counts[block_id] > 1 and table.num_tokens % table.block_size:
            (own,) = table.pool.allocate(1)
            table.pool.release(block_id)
            table.block_ids[index] = own
            copies.append((block_id, own))
    return copies
"""
RETURNS_NOTHING = f"""{FORK}

def prepare_write(table):
    if table.num_tokens % table.block_size and table.pool.ref_counts[table.block_ids[-1]] > 1:
        (own,) = table.pool.allocate(1)
        table.pool.release(table.block_ids[-1])
        table.block_ids[-1] = own
"""
KEEPS_THE_LENGTH = """
def fork(table):
    for block_id in table.block_ids:
        table.pool.acquire(block_id)
    return table


def prepare_write(table):
    return []
"""
ONE_CONDITION = f"""{FORK}

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

BANKS = {
    "3.5": Bank(
        wrong=(
            Wrong("copies at once", COPIES_EAGERLY, SHARES),
            Wrong("the table itself", KEEPS_THE_LENGTH, SHARES),
            Wrong("takes no share", {1: "[]"}, SHARES),
            Wrong("no share of the partial block", {1: "table.block_ids[:-1]"}, SHARES),
            Wrong("full blocks only", {2: "table.block_ids[: table.num_tokens // table.block_size]"}, SHARES),
            Wrong("the same list", {2: "table.block_ids"}, LIST),
            Wrong("copies full blocks too", {3: "not table.block_ids"}, ONLY),
            Wrong("copies a block of its own", {5: "False"}, ONLY),
            Wrong("never copies", {3: "True"}, COPIES),
            Wrong("copies with three owners, not with two", {5: "table.pool.ref_counts[shared] <= 2"}, COPIES),
            Wrong("the first block", {4: "table.block_ids[0]"}, COPIES),
            Wrong("target and source exchanged", {8: "[(own, shared)]"}, COPIES),
            Wrong("copies the copy", {8: "[(own, own)]"}, COPIES),
            Wrong("does it, and does not say so", RETURNS_NOTHING, ONLY),
            Wrong("keeps its share of the old block", {6: "None"}, COPIES),
            Wrong("keeps writing into the shared block", {7: "shared"}, COPIES),
            Wrong("copies the whole sequence", COPIES_EVERYTHING, COPIES),
            Wrong("releases before it asks", RELEASES_FIRST, DAMAGE),
        ),
        right=(
            Right("one condition", ONE_CONDITION),
            Right("a shallow copy of the table", DEEP_COPY),
            Right("by the room that is left", {3: "len(table.block_ids) * table.block_size == table.num_tokens"}),
        ),
    ),
}
BANKS = opened_all(BANKS)
