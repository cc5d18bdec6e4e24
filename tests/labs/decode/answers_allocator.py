"""Answers that prove the checks of exercises 3.2 and 3.3."""

from twophase_labs.machine.bank import right, wrong

FREE, COUNTS, DAMAGE = "gives out blocks that are free", "counts owners and free blocks", "runs out without damage"
BACK, SHARED, DOUBLE = "takes blocks back", "keeps a block as long as it has an owner", "refuses to free a free block"
BOOKS, DEMAND, KEEPS = "keeps its books over a random history", "takes blocks on demand", "keeps the blocks it has"
SLOT, REFUSES_TO, ALL_BACK = "finds the slot of a position", "refuses to shrink", "gives every block back"
HAS_NO = "has no slot for a position without a token"

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
KEEPS_A_LIST_OF_SLOTS = """
class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size, self.block_ids, self._slots = (pool, block_size, [], [])
        self.num_tokens = 0

    def grow(self, num_tokens):
        if self.num_tokens > num_tokens:
            raise CacheStateError('shorter')
        need = (num_tokens + self.block_size - 1) // self.block_size
        new = self.pool.allocate(need - len(self.block_ids))
        self.block_ids = [*self.block_ids, *new]
        self.num_tokens = num_tokens

    def slot(self, position):
        if position < 0 or position >= self.num_tokens:
            raise IndexError('none')
        slots = [b * self.block_size + i for b in self.block_ids for i in range(self.block_size)]
        return slots[position]

    def free(self):
        ids, self.block_ids, self.num_tokens = (self.block_ids, [], 0)
        for b in ids:
            self.pool.release(b)
"""
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

# fmt: off
BANKS = {
    "3.2": (
        wrong("returns a tuple", "return block_ids", "return tuple(block_ids)", by=FREE),
        wrong("at most 256 blocks", "range(num_blocks - 1, -1, -1)", "range(min(num_blocks, 256) - 1, -1, -1)",
              by=FREE),
        wrong("given out without an owner", ".ref_counts[block_id] = 1", ".ref_counts[block_id] = 0", by=COUNTS),
        wrong("never refuses", "n > self.num_free", "False", by=DAMAGE),
        wrong("never frees", "1\n        if self.ref_counts[block_id] == 0", "1\n        if False", by=BACK),
        wrong("counts in bytes", "[0] * num_blocks", "torch.zeros(num_blocks, dtype=torch.uint8)", by=SHARED),
        wrong("a double free unnoticed", "release(self, block_id):\n        if self.ref_counts[block_id] == 0",
              "release(self, block_id):\n        if False", by=DOUBLE),
        wrong("class-level counts reset by each new pool", "self.ref_counts = [0] * num_blocks",
              "BlockPool.ref_counts = [0] * num_blocks", by=BOOKS),
        right("no list, just counts", SET_OF_FREE),
        right("first in, first out", DEQUE),
    ),
    "3.3": (
        wrong("takes all again", "num_blocks - len(self.block_ids)", "num_blocks", by=DEMAND),
        wrong("refuses as many as there are", "num_tokens < self.num_tokens",
              "num_tokens <= self.num_tokens and self.num_tokens", by=KEEPS),
        wrong("always the last block", "position // self.block_size", "-1", by=SLOT),
        wrong("counts before it asks", "self.block_ids = self.block_ids + self.pool",
              "self.num_tokens = num_tokens\n        self.block_ids = self.block_ids + self.pool", by=DAMAGE),
        wrong("shrinks below nothing", "num_tokens < self.num_tokens", "0 <= num_tokens < self.num_tokens",
              by=REFUSES_TO),
        wrong("counts down itself", ".pool.release(block_id)", ".pool.ref_counts[block_id] -= 1", by=ALL_BACK),
        wrong("negative positions count from the end", "not 0 <= position <", "position >=", by=HAS_NO),
        wrong("a position beyond the tokens gets a slot", "not 0 <= position < self.num_tokens",
              "position >= len(self.block_ids) * self.block_size", by=HAS_NO),
        right("keeps a list of slots", KEEPS_A_LIST_OF_SLOTS),
        right("asks only when blocks are missing", BLOCK_BY_BLOCK),
    ),
}
