"""sliding windows and attention sinks."""

from typing import Any

from twophase_labs.machine.checks import Draw, amount, compare, integers, reject
from twophase_labs.machine.exercise import exercise

SINKS = exercise(
    "5.9", "Blocks that no query reads any more", "kept_blocks", points=3, minutes=8, lines=4, difficulty=2
)
SINKS.time_limit_s = 10
SINKS.objective = "bound a sequence's memory without giving up a block that is still read"
SINKS.hints = (
    "Ask what the *next* token sees: it stands at position num_tokens, because positions count from 0.",
    "A window of 1 is the token itself. So the first key the next token sees is at num_tokens + 1 - window.",
    "num_sink_blocks = ...  # rounded up\nfirst_seen = ...  # the first position in the next window\n"
    "first_block = first_seen // block_size\nreturn [i for i in range(...) if ...]",
)


@SINKS.check("keeps all of a short sequence", num_sinks=(0, 2))
def keeps_short(answer: Any, draw: Draw, num_sinks: int) -> None:
    """As long as there are fewer tokens than the window, everything is seen; mind numbers below 0. And a block that
    does not exist yet cannot be kept, not even for sinks: 0 tokens are in no block."""
    window = draw.integer(20, 60)
    block_size = draw.choice([4, 8, 16])
    lengths = [(n, block_size) for n in (0, 1, block_size, block_size + 1, window - 1)]
    for num_tokens, block_size in [(window - 2, 1), *lengths]:
        got = asked_for(answer, num_tokens, block_size, window, num_sinks)
        of = told(num_tokens, block_size, window, num_sinks)
        compare(sorted(set(got)), list(range(-(-num_tokens // block_size))), what=f"the blocks kept of {of}")


def require_kept(answer: Any, sizes: tuple[int, int, int, int]) -> None:
    num_tokens, block_size, window, _ = sizes
    got = asked_for(answer, *sizes)
    for block in blocks_to_come(*sizes):
        if block not in got:
            first = max(num_tokens - window + 1, block * block_size)
            use = "is written into it" if first == num_tokens else f"sees key {first} in it"
            reject(f"block {block} is given up, and the next token, at {num_tokens}, {use}", told(*sizes), f"got {got}")


@SINKS.check("keeps what the next token sees")
def keeps_window(answer: Any, draw: Draw) -> None:
    """A block in which a single key is still seen must stay, and the key may be the block's last one; so must the
    block that the next token is written into."""
    for window in (6, 1):
        require_kept(answer, (13, 4, window, 0))
    for _ in range(40):
        require_kept(answer, drawn_sizes(draw, 0))


@SINKS.check("keeps the sinks", num_sinks=(1, 4, 9))
def keeps_sinks(answer: Any, draw: Draw, num_sinks: int) -> None:
    """num_sinks counts tokens; the blocks that hold them are as many as it takes, rounded up."""
    for _ in range(40):
        sizes = drawn_sizes(draw, num_sinks)
        num_tokens, block_size, _, _ = sizes
        got = asked_for(answer, *sizes)
        for sink in range(min(num_sinks, num_tokens)):
            if sink // block_size not in got:
                reject(f"sink {sink} is in block {sink // block_size}, which is given up", told(*sizes), f"got {got}")


@SINKS.check("gives up what nobody sees", num_sinks=(0, 4))
def gives_up(answer: Any, draw: Draw, num_sinks: int) -> None:
    """The next token takes a place in the window itself, so it sees window - 1 of those that are there."""
    for _ in range(40):
        sizes = drawn_sizes(draw, num_sinks)
        right = blocks_to_come(*sizes)
        for block in asked_for(answer, *sizes):
            if block not in right:
                reject(f"block {block} is kept, and no query to come sees a key in it", told(*sizes))


@SINKS.check("names each block once, in order", num_sinks=(0, 5))
def in_order(answer: Any, draw: Draw, num_sinks: int) -> None:
    # In the first two the window begins in a sink's block.
    """Where sinks and window meet, a block belongs to both and is still one block."""
    for sizes in [(7, 4, 5, num_sinks), (14, 4, 12, num_sinks), *(drawn_sizes(draw, num_sinks) for _ in range(40))]:
        compare(asked_for(answer, *sizes), blocks_to_come(*sizes), what=told(*sizes))


@SINKS.check("gives the examples of the text")
def knows_the_example(answer: Any, draw: Draw) -> None:
    """13 tokens are in blocks 0 to 3; what sees token 13?"""
    compare(asked_for(answer, 13, 4, 6, 2), [0, 2, 3], what="kept_blocks of the text's example")


def is_seen(query: int, key: int, window: int, num_sinks: int) -> bool:
    return key in range(max(0, query - window + 1), query + 1) or key in range(min(num_sinks, query + 1))


def blocks_to_come(num_tokens: int, block_size: int, window: int, num_sinks: int) -> list[int]:
    """Brute force: what the queries from here on see, position by position, of the tokens that are there."""
    seen = set()
    for query in range(num_tokens, num_tokens + window + 1):
        seen |= {key // block_size for key in range(query + 1) if is_seen(query, key, window, num_sinks)}
    return sorted(block for block in seen if block * block_size < num_tokens)


def asked_for(answer: Any, num_tokens: int, block_size: int, window: int, num_sinks: int) -> list[int]:
    returned = answer.kept_blocks(num_tokens, block_size, window, num_sinks)
    got = integers(returned)
    if got is None:
        reject(f"the result is a list of block numbers; got {returned!r}")
    return got


def told(num_tokens: int, block_size: int, window: int, num_sinks: int) -> str:
    return f"{amount(num_tokens, 'token')} in blocks of {block_size}, window {window}, {amount(num_sinks, 'sink')}"


def drawn_sizes(draw: Draw, num_sinks: int) -> tuple[int, int, int, int]:
    block_size, window = draw.choice([1, 3, 4, 6, 8, 12, 16]), draw.integer(1, 40)
    return window + draw.integer(1, 120), block_size, window, num_sinks


@SINKS.check("holds for long texts")
def keeps_long(answer: Any, draw: Draw) -> None:
    """Blocks have any size, and texts any length."""
    # More than a thousand tokens, and a block size that is no power of two.
    for sizes in ((1300, 12, 20, 5), (700, 16, 300, 40), (1303, 24, 30, 0)):
        compare(asked_for(answer, *sizes), blocks_to_come(*sizes), what=told(*sizes))
