"""Answers that prove the check of exercise 7.11."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

LOAD, FIRST, BACK, WEIGHT, BLOCKS, DAY, APART, DEFAULTS, TOKENS, AGAIN, KEEPS = (
    "goes by load where nothing is shared",
    "takes the lowest index among equals",
    "goes back to its prefix, unless load outweighs it",
    "weighs tokens to compute against load",
    "counts whole blocks, from the beginning",
    "remembers where it sent what",
    "keeps routers apart",
    "has a weight of 1 and blocks of 16 unless told otherwise",
    "compares every token of a block",
    "knows a prompt that comes again",
    "forgets nothing",
)
RIGHT = """
class PrefixRouter:
    def __init__(self, num_engines, weight=1.0, block_size=16):
        self.weight, self.block_size = weight, block_size
        self.sent = [set() for _ in range(num_engines)]

    def _keys(self, prompt):
        key, keys = 0, []
        for end in range(self.block_size, len(prompt) + 1, self.block_size):
            key = hash((key, tuple(prompt[end - self.block_size : end])))
            keys.append(key)
        return keys

    def choose(self, prompt, loads):
        keys = self._keys(prompt)
        costs = []
        for sent, load in zip(self.sent, loads, strict=True):
            num_hit = next((i for i, key in enumerate(keys) if key not in sent), len(keys))
            costs.append(self.weight * (len(prompt) - num_hit * self.block_size) + load)
        chosen = costs.index(min(costs))
        self.sent[chosen].update(keys)
        return chosen
"""


def edited(*pairs: tuple[str, str]) -> str:
    text = RIGHT
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


WHOLE_BEGINNINGS = """
class PrefixRouter:
    def __init__(self, num_engines, weight=1.0, block_size=16):
        self.sent = {engine: set() for engine in range(num_engines)}
        self.weight, self.size = weight, block_size

    def hit(self, engine, prompt):
        tokens = 0
        while tokens + self.size <= len(prompt) and tuple(prompt[: tokens + self.size]) in self.sent[engine]:
            tokens += self.size
        return tokens

    def choose(self, prompt, loads):
        best, least = 0, None
        for engine, load in enumerate(loads):
            cost = self.weight * (len(prompt) - self.hit(engine, prompt)) + load
            if least is None or cost < least:
                best, least = engine, cost
        for end in range(self.size, len(prompt) + 1, self.size):
            self.sent[best].add(tuple(prompt[:end]))
        return best
"""
A_TREE = """
class PrefixRouter:
    def __init__(self, num_engines, weight=1.0, block_size=16):
        self.roots = [{} for _ in range(num_engines)]
        self.weight, self.size = weight, block_size

    def blocks(self, prompt):
        return [tuple(prompt[i : i + self.size]) for i in range(0, len(prompt) - self.size + 1, self.size)]

    def choose(self, prompt, loads):
        blocks, costs = self.blocks(prompt), []
        for node, load in zip(self.roots, loads):
            depth = 0
            for block in blocks:
                if block not in node:
                    break
                node, depth = node[block], depth + 1
            costs.append(self.weight * (len(prompt) - depth * self.size) + load)
        chosen = min(range(len(costs)), key=costs.__getitem__)
        node = self.roots[chosen]
        for block in blocks:
            node = node.setdefault(block, {})
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

BANKS = {
    "7.11": Bank(
        wrong=(
            Wrong("the largest load", edited(("costs.index(min(costs))", "costs.index(max(costs))")), LOAD),
            Wrong("always engine 0", edited(("costs.index(min(costs))", "0")), LOAD),
            Wrong(
                "the load alone",
                edited(
                    ("num_hit = next((i for i, key in enumerate(keys) if key not in sent), len(keys))", "num_hit = 0")
                ),
                BACK,
            ),
            Wrong(
                "the last of equals",
                edited(("costs.index(min(costs))", "len(costs) - 1 - costs[::-1].index(min(costs))")),
                FIRST,
            ),
            Wrong("nothing is noted", edited(("        self.sent[chosen].update(keys)\n", "")), BACK),
            Wrong(
                "noted at every engine",
                edited(("self.sent[chosen].update(keys)", "[sent.update(keys) for sent in self.sent]")),
                BACK,
            ),
            Wrong("the prefix whatever the load", edited((" + load)", " + 1e-6 * load)")), BACK),
            Wrong(
                "the weight on the load",
                edited(
                    (
                        "self.weight * (len(prompt) - num_hit * self.block_size) + load",
                        "len(prompt) - num_hit * self.block_size + self.weight * load",
                    )
                ),
                WEIGHT,
            ),
            Wrong("no weight", edited(("self.weight * (", "1 * (")), WEIGHT),
            Wrong(
                "blocks without what is before them",
                edited(
                    (
                        "hash((key, tuple(prompt[end - self.block_size : end])))",
                        "hash(tuple(prompt[end - self.block_size : end]))",
                    )
                ),
                BLOCKS,
            ),
            Wrong(
                "blocks with their place for what is before them",
                edited(("hash((key, tuple(", "hash((end, tuple(")),
                BLOCKS,
            ),
            Wrong("blocks of 17 unless told otherwise", edited(("block_size=16", "block_size=17")), DEFAULTS),
            Wrong("counts blocks, not tokens", edited(("num_hit * self.block_size", "num_hit")), BACK),
            Wrong("64 blocks at most", edited(("        return keys\n", "        return keys[:64]\n")), BACK),
            Wrong(
                "the first block alone",
                edited(("            keys.append(key)\n", "            keys = keys or [key]\n")),
                BACK,
            ),
            Wrong(
                "one index for all routers",
                edited(
                    ("        self.sent = [set() for _ in range(num_engines)]\n", ""),
                    ("class PrefixRouter:\n", "class PrefixRouter:\n    sent = [set() for _ in range(100)]\n\n"),
                    ("zip(self.sent, loads, strict=True)", "zip(self.sent, loads)"),
                ),
                APART,
            ),
            Wrong(
                "a whole weight",
                edited(("self.block_size = weight, block_size", "self.block_size = int(weight), block_size")),
                WEIGHT,
            ),
            Wrong("a default of no weight", edited(("weight=1.0", "weight=0.0")), DEFAULTS),
            Wrong(
                "a block's last token does not count",
                edited(("prompt[end - self.block_size : end]", "prompt[end - self.block_size : end - 1]")),
                BLOCKS,
            ),
            Wrong(
                "a block's first token does not count",
                edited(("prompt[end - self.block_size : end]", "prompt[end - self.block_size + 1 : end]")),
                TOKENS,
            ),
            Wrong("a block's tokens in any order", edited(("tuple(prompt[", "sum(prompt[")), TOKENS),
            Wrong("the last whole block is not counted", edited(("len(prompt) + 1, self", "len(prompt), self")), AGAIN),
            Wrong(
                "what is left counts as a block",
                edited(("len(prompt) + 1, self", "len(prompt) + self.block_size, self")),
                AGAIN,
            ),
            Wrong(
                "100 blocks of an engine",
                edited(
                    (
                        "        return chosen\n",
                        "        self.sent[chosen] = set(list(self.sent[chosen])[:100])\n        return chosen\n",
                    )
                ),
                KEEPS,
            ),
        ),
        right=(
            Right("old prompts, token by token", OLD_PROMPTS),
            Right("whole beginnings", WHOLE_BEGINNINGS),
            Right("a tree for each engine", A_TREE),
            Right("the owners of each beginning", OWNERS_BY_KEY),
        ),
    ),
}
