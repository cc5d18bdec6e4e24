"""Answers that prove the check of exercise 5.2."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

LONGEST, SHARES, KEEPS, FORGETS, OLDEST, ENDS = (
    "finds the longest known prefix",
    "shares a block with each request that needs it",
    "keeps what a request reads",
    "forgets what it overwrites",
    "overwrites the least recently used",
    "overwrites the end of a prefix before its beginning",
)
BY_DATES = """
class PrefixStore:
    def __init__(self, num_blocks):
        self.holds, self.users, self.date = [None] * num_blocks, [0] * num_blocks, [0] * num_blocks
        self.now = 0

    def lookup(self, hashes):
        blocks = []
        while len(blocks) < len(hashes) and hashes[len(blocks)] in self.holds:
            blocks.append(self.holds.index(hashes[len(blocks)]))
        return blocks

    def open(self, hashes, num_blocks):
        blocks = self.lookup(hashes)
        num_hit = len(blocks)
        for block in blocks:
            self.users[block] += 1
        for index in range(num_hit, num_blocks):
            free = [block for block, users in enumerate(self.users) if users == 0]
            block = min(free, key=lambda one: (self.holds[one] is not None, self.date[one]))
            self.holds[block] = hashes[index] if index < len(hashes) else None
            self.users[block] = 1
            blocks.append(block)
        return blocks, num_hit

    def close(self, blocks, hashes):
        for block in blocks[::-1]:
            self.users[block] -= 1
            self.now += 1
            self.date[block] = self.now
"""
TWO_QUEUES = """
class PrefixStore:
    def __init__(self, num_blocks):
        self.blank, self.old = list(range(num_blocks)), {}
        self.users, self.block_of = {}, {}

    def lookup(self, hashes):
        unknown = [at for at, one in enumerate(hashes) if one not in self.block_of]
        return [self.block_of[one] for one in hashes[: min(unknown, default=len(hashes))]]

    def open(self, hashes, num_blocks):
        blocks = self.lookup(hashes)
        num_hit = len(blocks)
        for block in blocks:
            self.old.pop(block, None)
        for one in range(num_hit, num_blocks):
            if self.blank:
                block = self.blank.pop()
            else:
                block = next(iter(self.old))
                del self.block_of[self.old.pop(block)]
            if one < len(hashes):
                self.block_of[hashes[one]] = block
            blocks.append(block)
        for block in blocks:
            self.users[block] = self.users.get(block, 0) + 1
        return blocks, num_hit

    def close(self, blocks, hashes):
        for at in range(len(blocks) - 1, -1, -1):
            block = blocks[at]
            self.users[block] -= 1
            if not self.users[block]:
                if at < len(hashes):
                    self.old[block] = hashes[at]
                else:
                    self.blank.append(block)
"""

BANKS = {
    "5.2": Bank(
        wrong=(
            Wrong(
                "skips what it does not know", {1: "one in hashes and one not in self.block_of and not blocks"}, LONGEST
            ),
            Wrong("never finds anything", {1: "True"}, LONGEST),
            Wrong("leaves hits among the free", {2: "pass"}, KEEPS),
            Wrong("overwrites the newest", {3: "last=True"}, OLDEST),
            Wrong("forgets nothing", {4: "pass"}, FORGETS),
            Wrong("forgets everything", {4: "self.block_of.clear()"}, KEEPS),
            Wrong("the beginning first", {5: "order"}, ENDS),
            Wrong("by block number", {5: "sorted(order, key=lambda pair: pair[0])"}, ENDS),
            Wrong("free as soon as one has gone", {6: "True"}, KEEPS),
            Wrong("never free again", {6: "False"}, KEEPS),
        ),
        right=(
            Right("dates instead of a queue", BY_DATES),
            Right("two queues", TWO_QUEUES),
        ),
    ),
}
