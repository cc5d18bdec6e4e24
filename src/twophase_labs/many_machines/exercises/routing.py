"""7.6: which engine gets a request."""

from collections.abc import Sequence
from typing import Any

from twophase_labs.machine.checks import Draw, integer, reject, unchanged
from twophase_labs.machine.exercise import exercise

ROUTER = exercise(
    "7.9", "To the engine that has the prefix", "PrefixRouter", points=4, minutes=22, lines=20, difficulty=3
)
ROUTER.time_limit_s = 20
ROUTER.objective = "choose an engine by its cache and its load together"
ROUTER.hints = (
    "For each engine a set of the blocks that were sent to it. A block is the same only if all before it is the "
    "same, too: what is a good key for that?",
    "As in a prefix cache, the key of block i is `hash((key of block i - 1, tokens of block i))`. Count keys from "
    "the first block on, and stop at the first that the engine does not have.",
    "def _keys(self, prompt):\n"
    "    key, keys = 0, []\n"
    "    for end in range(self.block_size, len(prompt) + 1, self.block_size):\n"
    "        key = hash(...)\n"
    "        keys.append(key)\n"
    "    return keys\n\n"
    "def choose(self, prompt, loads):\n"
    "    keys = self._keys(prompt)\n"
    "    costs = [self.weight * (len(prompt) - ...) + load for sent, load in zip(self.sent, loads)]\n"
    "    chosen = ...\n"
    "    self.sent[chosen].update(keys)\n"
    "    return chosen",
)

Index = list[set[tuple[int, ...]]]


def hit(index: set[tuple[int, ...]], prompt: list[int], block_size: int) -> int:
    """An oracle that keeps whole beginnings."""
    blocks = 0
    while (blocks + 1) * block_size <= len(prompt) and tuple(prompt[: (blocks + 1) * block_size]) in index:
        blocks += 1
    return blocks * block_size


class Expected:
    """Costs by the book, one engine at a time."""

    def __init__(self, num_engines: int, weight: float, block_size: int) -> None:
        self.sent: Index = [set() for _ in range(num_engines)]
        self.weight, self.block_size = weight, block_size

    def costs(self, prompt: list[int], loads: Sequence[float]) -> list[float]:
        return [
            self.weight * (len(prompt) - hit(sent, prompt, self.block_size)) + load
            for sent, load in zip(self.sent, loads, strict=True)
        ]

    def note(self, chosen: int, prompt: list[int]) -> None:
        ends = range(self.block_size, len(prompt) + 1, self.block_size)
        self.sent[chosen] |= {tuple(prompt[:end]) for end in ends}


def chosen(router: Any, prompt: list[int], loads: Sequence[float], expected: Expected, story: str = "") -> None:
    """Ask for one decision and compare it with the least cost; then both note it."""
    with unchanged(prompt=prompt, loads=loads):
        got = integer(router.choose(prompt, loads))
    if got is None or not 0 <= got < len(loads):
        reject(f"choose returned {got!r}, expected an index from 0 to {len(loads) - 1}")
    costs = expected.costs(prompt, loads)
    best = costs.index(min(costs))
    if got != best:
        shown = ", ".join(f"{cost:g}" for cost in costs)
        reject(
            f"choose sent {len(prompt)} tokens to engine {got}, expected {best}{story}",
            f"loads {loads}, weight {expected.weight:g}, blocks of {expected.block_size}; the costs are {shown}",
        )
    expected.note(best, prompt)


def new(answer: Any, num_engines: int, weight: float, block_size: int) -> tuple[Any, Expected]:
    return answer.PrefixRouter(num_engines, weight, block_size), Expected(num_engines, weight, block_size)


@ROUTER.check("goes by load where nothing is shared", num_engines=(1, 2, 5, 70))
def fewest_tokens(answer: Any, draw: Draw, num_engines: int) -> None:
    """With equal numbers of tokens to compute, the engine with the least load costs least."""
    router, expected = new(answer, num_engines, 1.0, 4)
    for number in range(4):
        loads = draw.permutation(10 * num_engines)[:num_engines].tolist()
        prompt = [number, *draw.integers(100, 10**9, 9).tolist()]
        chosen(router, prompt, loads, expected, " (nothing is shared: the least load)")


@ROUTER.check("keeps routers apart")
def routers_are_apart(answer: Any, draw: Draw) -> None:
    """Each PrefixRouter has an index of its own: is yours an attribute of the class?"""
    prefix = draw.integers(0, 90, 16).tolist()
    first, seen = new(answer, 2, 1.0, 4)
    chosen(first, prefix, [9, 0], seen)
    second, unseen = new(answer, 2, 1.0, 4)
    chosen(second, prefix, [0, 3], unseen, " (another router, which has sent nothing yet)")


@ROUTER.check("takes the lowest index among equals", num_engines=(2, 4))
def lowest_index_wins(answer: Any, draw: Draw, num_engines: int) -> None:
    """`costs.index(min(costs))` is the first of the cheapest."""
    router, expected = new(answer, num_engines, 1.0, 4)
    load = draw.integer(0, 9)
    chosen(router, [1, 2, 3], [load] * num_engines, expected, " (all cost the same: the lowest index)")


@ROUTER.check("goes back to its prefix, unless load outweighs it", num_blocks=(1, 5, 90))
def goes_back_to_its_prefix(answer: Any, draw: Draw, num_blocks: int) -> None:
    """What was sent to an engine is in its cache: note the blocks of each prompt at the engine chosen."""
    size = draw.integer(2, 6)
    router, expected = new(answer, 3, 1.0, size)
    prefix = draw.integers(0, 90, num_blocks * size).tolist()
    chosen(router, [*prefix, 900], [5, 0, 5], expected)
    chosen(router, [*prefix, 901, 902], [0, size * num_blocks - 1, 0], expected, " (its prefix is at engine 1)")
    chosen(router, [*prefix, 903], [0, size * num_blocks + 1, 0], expected, " (engine 1 has the prefix, and more load)")


@ROUTER.check("weighs tokens to compute against load", weight=(1.0, 0.5, 4.0, 0.0, 2.75))
def weighs_hits(answer: Any, draw: Draw, weight: float) -> None:
    """cost = weight * (tokens that are no hit) + load."""
    # On both sides of the load at which a hit of 40 tokens is worth no more, and just on it.
    prefix = draw.integers(0, 90, 40).tolist()
    for load in (weight * 40 - 1, weight * 40, weight * 40 + 1, 20, 50, 100):
        router, expected = new(answer, 2, weight, 4)
        chosen(router, [*prefix, 900], [9, 0], expected)
        chosen(router, [*prefix, 901], [0, load], expected, f" (weight {weight:g}, a hit of 40 tokens at engine 1)")


@ROUTER.check("has a weight of 1 and blocks of 16 unless told otherwise")
def has_its_defaults(answer: Any, draw: Draw) -> None:
    """`PrefixRouter(num_engines, weight=1.0, block_size=16)`."""
    # A weight of 1 and blocks of 16 tokens: a prefix of 40 is a hit of 32.
    prefix = draw.integers(0, 90, 40).tolist()
    for load in (31, 33):
        router, expected = answer.PrefixRouter(2), Expected(2, 1.0, 16)
        chosen(router, prefix, [1, 0], expected)
        chosen(router, [*prefix, 99], [0, load], expected, " (of a router made with num_engines alone)")


@ROUTER.check("counts whole blocks, from the beginning")
def only_whole_blocks_from_the_start(answer: Any, draw: Draw) -> None:
    """A block is a hit if it and all before it were sent to that engine. Part of a block is no hit."""
    # The same tokens later in a prompt, a block that differs in its last token, and half a block are no hits.
    prefix = draw.integers(0, 90, 12).tolist()
    other = [*prefix[:3], 99, *prefix[4:]]
    for prompt, loads in (
        ([200, 201, 202, 203, *prefix], [1, 2]),  # the same blocks, elsewhere
        (prefix[4:], [1, 3]),  # its later blocks, at the beginning
        ([*prefix[:4], *prefix[8:]], [1, 6]),  # one block left out
        (other, [1, 3]),  # the first block differs
        (prefix[:3], [1, 2]),  # not one whole block
        ([*prefix[:6], 99], [1, 4]),  # one whole block, and half of the second
        ([*prefix[:6], 99], [1, 6]),
    ):
        router, expected = new(answer, 2, 1.0, 4)
        chosen(router, prefix, [1, 0], expected)
        chosen(router, prompt, loads, expected, f" (engine 1 has {prefix}, the prompt is {prompt})")
    # The first block of one prompt with the second of another.
    router, expected = new(answer, 2, 1.0, 4)
    for sent in (prefix[:8], [*range(200, 204), *prefix[8:]]):
        chosen(router, sent, [100, 0], expected)
    mixed = [*prefix[:4], *prefix[8:]]
    chosen(router, mixed, [0, 6], expected, f" (the second block of {mixed} has come after another first one only)")


@ROUTER.check("compares every token of a block", size=(2, 5, 4), num_blocks=(2, 3, 20))
def every_token_of_a_block_counts(answer: Any, draw: Draw, size: int, num_blocks: int) -> None:
    """Blocks are the same if all of their tokens are, in the same order."""
    # One token differs, anywhere in a block, or the order does: the hit ends before that block.
    prefix = (100 + draw.permutation(1000)[: size * num_blocks]).tolist()
    last = size * (num_blocks - 1)
    reordered = [*prefix[:last], *prefix[last + 1 :], prefix[last]]
    others = [[*prefix[:at], 2000, *prefix[at + 1 :]] for at in range(last, last + size)]
    if size > 1:  # what 31 * key + token takes for the same
        others.append([*prefix[:last], prefix[last] - 1, prefix[last + 1] + 31, *prefix[last + 2 :]])
    for prompt in (*others, reordered):
        for load in (last - 1, last + 1):
            router, expected = new(answer, 2, 1.0, size)
            chosen(router, prefix, [1, 0], expected)
            story = f" (block {num_blocks - 1} is not that of engine 1: {prompt[last:]}, {prefix[last:]} there)"
            chosen(router, prompt, [0, load], expected, story)


@ROUTER.check("knows a prompt that comes again", size=(2, 5))
def sends_the_same_prompt_again(answer: Any, draw: Draw, size: int) -> None:
    """All whole blocks of a prompt are noted, the last one too if it is full; tokens after it are not."""
    # A prompt of any length, word for word: its whole blocks are a hit, also the last one; what is left is none.
    for num_tokens in range(size - 1, 3 * size + 1):
        whole = num_tokens // size * size
        for load in {max(0, whole - 1), whole + 1}:
            router, expected = new(answer, 2, 1.0, size)
            prompt = draw.integers(0, 90, num_tokens).tolist()
            chosen(router, prompt, [1, 0], expected)
            chosen(router, prompt, [0, load], expected, f" (the same {num_tokens} tokens again, blocks of {size})")


@ROUTER.check("forgets nothing", num_requests=(200,))
def forgets_nothing(answer: Any, draw: Draw, num_requests: int) -> None:
    """What was sent to an engine counts, however long ago."""
    router, expected = new(answer, 2, 1.0, 4)
    first = draw.integers(0, 90, 40).tolist()
    chosen(router, first, [1, 0], expected)
    for number in range(num_requests):
        chosen(router, [1000 + number] * 12, [100, 0], expected)
    chosen(router, first, [0, 39], expected, f" (it was sent to engine 1 before {num_requests} others)")
    for number in range(10 * num_requests):  # keys of 16 bits would be those of other blocks now and then
        chosen(router, [5000 + number] * 4, [0, 1], expected, " (no block of it was sent before)")


@ROUTER.check("remembers where it sent what", num_engines=(2, 4), num_requests=(12, 40))
def remembers_where_it_sent(answer: Any, draw: Draw, num_engines: int, num_requests: int) -> None:
    """Only the engine chosen gets the blocks, all whole ones of the prompt, after every decision."""
    # A random day: prefixes of several lengths, one the beginning of the other.
    size = draw.integer(2, 5)
    router, expected = new(answer, num_engines, draw.choice([0.0, 0.5, 1.0, 2.0]), size)
    root = draw.integers(0, 90, 8 * size).tolist()
    for number in range(num_requests):
        prompt = root[: draw.integer(0, len(root) + 1)] + [1000 * number + i for i in range(draw.integer(0, 2 * size))]
        loads = [draw.integer(0, 6 * size) for _ in range(num_engines)]
        chosen(router, prompt, loads, expected, f" (request {number} of a random day)")
