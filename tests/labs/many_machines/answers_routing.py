"""Answers that prove the check of exercise 7.9."""

from twophase_labs.machine.bank import right, wrong

LOAD, APART = "goes by load where nothing is shared", "keeps routers apart"
FIRST, BACK = "takes the lowest index among equals", "goes back to its prefix, unless load outweighs it"
WEIGHT, DEFAULTS = "weighs tokens to compute against load", "has a weight of 1 and blocks of 16 unless told otherwise"
BLOCKS, TOKENS = "counts whole blocks, from the beginning", "compares every token of a block"
AGAIN, KEEPS = "knows a prompt that comes again", "forgets nothing"

ONE_INDEX_FOR_ALL = """
class PrefixRouter:
    sent = [set() for _ in range(100)]

    def __init__(self, num_engines, weight=1.0, block_size=16):
        self.weight, self.block_size = weight, block_size

    def _keys(self, prompt):
        key, keys = 0, []
        for end in range(self.block_size, len(prompt) + 1, self.block_size):
            key = hash((key, tuple(prompt[end - self.block_size : end])))
            keys.append(key)
        return keys

    def choose(self, prompt, loads):
        keys = self._keys(prompt)
        costs = []
        for sent, load in zip(self.sent, loads):
            num_hit = next((i for i, key in enumerate(keys) if key not in sent), len(keys))
            costs.append(self.weight * (len(prompt) - num_hit * self.block_size) + load)
        chosen = costs.index(min(costs))
        self.sent[chosen].update(keys)
        return chosen
"""
OWNERS_BY_KEY = """
class PrefixRouter:
    def __init__(self, num_engines, weight=1.0, block_size=16):
        self.num_engines, self.weight, self.block_size = num_engines, weight, block_size
        self.owners = {}

    def choose(self, prompt, loads):
        keys = [tuple(prompt[:end]) for end in range(self.block_size, len(prompt) + 1, self.block_size)]
        hits = [0] * self.num_engines
        for depth, key in enumerate(keys):
            for engine in self.owners.get(key, ()):
                if hits[engine] == depth:
                    hits[engine] = depth + 1
        costs = [self.weight * (len(prompt) - h * self.block_size) + load for h, load in zip(hits, loads)]
        chosen = costs.index(min(costs))
        for key in keys:
            self.owners.setdefault(key, set()).add(chosen)
        return chosen
"""
OLD_PROMPTS = """
class PrefixRouter:
    def __init__(self, num_engines, weight=1.0, block_size=16):
        self.prompts = [[] for _ in range(num_engines)]
        self.weight, self.size = weight, block_size

    def choose(self, prompt, loads):
        best = None
        for engine, load in enumerate(loads):
            hit = 0
            for old in self.prompts[engine]:
                same = 0
                while same < min(len(old), len(prompt)) and old[same] == prompt[same]:
                    same += 1
                hit = max(hit, same // self.size * self.size)
            cost = self.weight * (len(prompt) - hit) + load
            if best is None or cost < best[0]:
                best = cost, engine
        self.prompts[best[1]].append(list(prompt))
        return best[1]
"""

# fmt: off
BANKS = {
    "7.9": (
        wrong("the largest load", "min(costs)", "max(costs)", by=LOAD),
        wrong("one index for all routers", ONE_INDEX_FOR_ALL, by=APART),
        wrong("the last of equals", "costs.index", "len(costs) - 1 - costs[::-1].index", by=FIRST),
        wrong("64 blocks at most", "return keys", "return keys[:64]", by=BACK),
        wrong("a whole weight", "weight, block_size", "int(weight), block_size", by=WEIGHT),
        wrong("a default of no weight", "def __init__(self, num_engines, weight=1.0",
              "def __init__(self, num_engines, weight=0.0", by=DEFAULTS),
        wrong("blocks without what is before them", "(key, tuple(prompt[end - self.block_size : end])",
              "tuple(prompt[end - self.block_size:end]", by=BLOCKS),
        wrong("a block's tokens in any order", "tuple(prompt[end - self.block_size : end])",
              "sum(prompt[end - self.block_size : end])", by=TOKENS),
        wrong("the last whole block is not counted", "(prompt) + 1", "(prompt)", by=AGAIN),
        wrong("100 blocks of an engine", "return chosen",
              "self.sent[chosen] = set(list(self.sent[chosen])[:100])\n        return chosen", by=KEEPS),
        right("the owners of each beginning", OWNERS_BY_KEY),
        right("old prompts, token by token", OLD_PROMPTS),
    ),
}
