"""Answers that prove the checks of exercises 3.3 and 3.4."""

from tests.labs.decode.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

FREE, COUNTS, DAMAGE, BACK, SHARED, DOUBLE, BOOKS = (
    "gives out blocks that are free",
    "counts owners and free blocks",
    "runs out without damage",
    "takes blocks back",
    "keeps a block as long as it has an owner",
    "refuses to free a free block",
    "keeps its books over a random history",
)
DEMAND, KEEPS, SLOT, TABLE_DAMAGE, ALL_BACK, HISTORIES = (
    "takes blocks on demand",
    "keeps the blocks it has",
    "finds the slot of a position",
    "runs out without damage",
    "gives every block back",
    "survives random histories",
)

SET_OF_FREE = """
class BlockPool:
    def __init__(self, num_blocks):
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return self.ref_counts.count(0)

    def allocate(self, n):
        free = [block_id for block_id, count in enumerate(self.ref_counts) if count == 0]
        if len(free) < n:
            raise OutOfBlocksError("no")
        for block_id in free[:n]:
            self.ref_counts[block_id] = 1
        return free[:n]

    def acquire(self, block_id):
        if not self.ref_counts[block_id]:
            raise CacheStateError("free")
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if not self.ref_counts[block_id]:
            raise CacheStateError("free")
        self.ref_counts[block_id] -= 1
"""
DEQUE = """
from collections import deque


class BlockPool:
    def __init__(self, num_blocks):
        self.ref_counts = [0] * num_blocks
        self.queue = deque(range(num_blocks))

    @property
    def num_free(self):
        return len(self.queue)

    def allocate(self, n):
        if len(self.queue) - n < 0:
            raise OutOfBlocksError("no")
        taken = [self.queue.popleft() for _ in range(n)]
        for block_id in taken:
            self.acquire(block_id, may_be_free=True)
        return taken

    def acquire(self, block_id, may_be_free=False):
        if self.ref_counts[block_id] == 0 and not may_be_free:
            raise CacheStateError("free")
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError("free")
        self.ref_counts[block_id] -= 1
        if not self.ref_counts[block_id]:
            self.queue.append(block_id)
"""
TAKES_WHAT_IS_LEFT = """
class BlockPool:
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.free_ids = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        block_ids = []
        for _ in range(n):
            if not self.free_ids:
                raise OutOfBlocksError("no")
            block_ids.append(self.free_ids.pop())
            self.ref_counts[block_ids[-1]] = 1
        return block_ids

    def acquire(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError("free")
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError("free")
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            self.free_ids.append(block_id)
"""
RETURNS_NONE = TAKES_WHAT_IS_LEFT.replace('raise OutOfBlocksError("no")', "return None")

BLOCK_BY_BLOCK = """
class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids, self.num_tokens = [], 0

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError("smaller")
        wanted = (num_tokens + self.block_size - 1) // self.block_size
        missing = wanted - len(self.block_ids)
        if missing > 0:
            self.block_ids = self.block_ids + self.pool.allocate(missing)
        self.num_tokens = num_tokens

    def slot(self, position):
        if position not in range(self.num_tokens):
            raise IndexError(position)
        index, offset = divmod(position, self.block_size)
        return self.block_ids[index] * self.block_size + offset

    def free(self):
        while self.block_ids:
            self.pool.release(self.block_ids.pop())
        self.num_tokens = 0
"""
MATH_CEIL = """
import math


class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids, self.num_tokens = [], 0

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError("smaller")
        new = self.pool.allocate(math.ceil(num_tokens / self.block_size) - len(self.block_ids))
        self.block_ids.extend(new)
        self.num_tokens = num_tokens

    def slot(self, position):
        if position < 0:
            raise IndexError(position)
        slots = [b * self.block_size + o for b in self.block_ids for o in range(self.block_size)]
        return slots[: self.num_tokens][position]

    def free(self):
        for block_id in reversed(self.block_ids):
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = [], 0
"""
ONE_AT_A_TIME = """
class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids, self.num_tokens = [], 0

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError("smaller")
        while len(self.block_ids) * self.block_size < num_tokens:
            self.block_ids += self.pool.allocate(1)
        self.num_tokens = num_tokens

    def slot(self, position):
        return self.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def free(self):
        for block_id in self.block_ids:
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = [], 0
"""
COUNTS_FIRST = ONE_AT_A_TIME.replace(
    "        while len(self.block_ids) * self.block_size < num_tokens:\n"
    "            self.block_ids += self.pool.allocate(1)\n"
    "        self.num_tokens = num_tokens\n",
    "        self.num_tokens = num_tokens\n"
    "        self.block_ids += self.pool.allocate(-(-num_tokens // self.block_size) - len(self.block_ids))\n",
)
GROWS_BY = ONE_AT_A_TIME.replace(
    "        while len(self.block_ids) * self.block_size < num_tokens:\n"
    "            self.block_ids += self.pool.allocate(1)\n"
    "        self.num_tokens = num_tokens\n",
    "        self.num_tokens += num_tokens\n"
    "        self.block_ids += self.pool.allocate(-(-self.num_tokens // self.block_size) - len(self.block_ids))\n",
)
IN_FRONT = ONE_AT_A_TIME.replace(
    "            self.block_ids += self.pool.allocate(1)\n",
    "            self.block_ids = self.pool.allocate(1) + self.block_ids\n",
)
REPLACES = ONE_AT_A_TIME.replace(
    "        while len(self.block_ids) * self.block_size < num_tokens:\n"
    "            self.block_ids += self.pool.allocate(1)\n",
    "        if len(self.block_ids) * self.block_size < num_tokens:\n"
    "            for block_id in self.block_ids:\n"
    "                self.pool.release(block_id)\n"
    "            self.block_ids = self.pool.allocate(-(-num_tokens // self.block_size))\n",
)

BANKS = {
    "3.3": Bank(
        wrong=(
            Wrong("gives the same blocks again", {2: "self.free_ids[:n]"}, FREE),
            Wrong("one block, n times", {2: "n * [self.free_ids.pop()]"}, FREE),
            Wrong("the counts of the blocks, not their ids", {2: "self.ref_counts[:n]"}, FREE),
            Wrong("one block too few", {2: "[self.free_ids.pop() for _ in range(n - 1)]"}, FREE),
            Wrong("given out without an owner", {3: "0"}, COUNTS),
            Wrong("refuses to give the last block", {1: "n >= self.num_free"}, FREE),
            Wrong("never refuses", {1: "False"}, DAMAGE),
            Wrong("takes what is left, then raises", TAKES_WHAT_IS_LEFT, DAMAGE),
            Wrong("None when there are too few", RETURNS_NONE, DAMAGE),
            Wrong("never frees", {7: "False"}, BACK),
            Wrong("counts up on release", {6: "self.ref_counts[block_id] + 1"}, BACK),
            Wrong("acquire counts nothing", {4: "self.ref_counts[block_id]"}, SHARED),
            Wrong("frees a block that is shared", {7: "True"}, SHARED),
            Wrong("release forgets all owners", {6: "0"}, SHARED),
            Wrong("a double free unnoticed", {5: "False"}, DOUBLE),
        ),
        right=(
            Right("no list, just counts", SET_OF_FREE),
            Right("first in, first out", DEQUE),
            Right("owners left, the other way round", {7: "not self.ref_counts[block_id]"}),
        ),
    ),
    "3.4": Bank(
        wrong=(
            Wrong("rounds down", {1: "num_tokens // self.block_size"}, DEMAND),
            Wrong("always one more", {1: "num_tokens // self.block_size + 1"}, DEMAND),
            Wrong("a block per token", {1: "num_tokens"}, DEMAND),
            Wrong("takes all again", {2: "num_blocks"}, DEMAND),
            Wrong("grows by, not to", GROWS_BY, DEMAND),
            Wrong("new blocks in front", IN_FRONT, KEEPS),
            Wrong("gives back what it had and takes new ones", REPLACES, KEEPS),
            Wrong("the offset alone", {4: "position % self.block_size"}, SLOT),
            Wrong("the block of the sequence, not of the pool", {4: "position"}, SLOT),
            Wrong(
                "always the last block",
                {3: "self.block_ids[-1]"},
                SLOT,
            ),
            Wrong(
                "offset and block exchanged",
                {3: "self.block_ids[position % self.block_size]", 4: "block_id + position // self.block_size"},
                SLOT,
            ),
            Wrong("one at a time, as far as it goes", ONE_AT_A_TIME, TABLE_DAMAGE),
            Wrong("counts before it asks", COUNTS_FIRST, TABLE_DAMAGE),
            Wrong("forgets tokens", {7: "False"}, "refuses to shrink"),
            Wrong(
                "refuses as many as there are",
                {7: "num_tokens <= self.num_tokens and self.num_tokens"},
                KEEPS,
            ),
            Wrong("leaves the last block", {5: "self.block_ids[:-1]"}, ALL_BACK),
            Wrong("full blocks only", {5: "self.block_ids[: self.num_tokens // self.block_size]"}, ALL_BACK),
            Wrong("keeps the list", {6: "self.block_ids, 0"}, ALL_BACK),
        ),
        right=(
            Right("asks only when blocks are missing", BLOCK_BY_BLOCK),
            Right("slots from a list of all", MATH_CEIL),
            Right("rounds up by adding", {1: "(num_tokens + self.block_size - 1) // self.block_size"}),
            Right("last block first", {5: "reversed(self.block_ids)"}),
        ),
    ),
}
BANKS = opened_all(BANKS)
