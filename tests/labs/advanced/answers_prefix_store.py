"""Answers that prove the check of exercise 5.2."""

from twophase_labs.machine.bank import right, wrong

LONGEST, SHARES = "finds the longest known prefix", "shares a block with each request that needs it"
KEEPS, FORGETS = "keeps what a request reads", "forgets what it overwrites"
OLDEST, ENDS = "overwrites the least recently used", "overwrites the end of a prefix before its beginning"
FINDS_LONG, AGREES_WITH = "finds long prefixes", "agrees with a plain store for long"

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

# fmt: off
BANKS = {
    "5.2": (
        wrong("never finds anything", {1: "True"}, by=LONGEST),
        wrong("one pool of names for all stores", "self.block_of = {}",
              "self.block_of = PrefixStore.__dict__.get('names') or {}\n        PrefixStore.names = self.block_of",
              by=SHARES),
        wrong("free as soon as one has gone", {6: "True"}, by=KEEPS),
        wrong("forgets nothing", {4: "pass"}, by=FORGETS),
        wrong("overwrites the newest", {3: "last=True"}, by=OLDEST),
        wrong("the beginning first", {5: "order"}, by=ENDS),
        wrong("prefixes of at most 64 blocks", "hashes:", "hashes[:64]:", by=FINDS_LONG),
        wrong("close lengthens the caller's list of hashes", "hashes + [None] * (len(blocks) - len(hashes))", "hashes",
              "order = list(zip(blocks, names, strict=True))",
              "names += [None] * (len(blocks) - len(hashes))\n        order = list(zip(blocks, names, strict=True))",
              by=AGREES_WITH),
        right("dates instead of a queue", BY_DATES),
        right("two queues", TWO_QUEUES),
    ),
}
