"""sliding windows and attention sinks."""

from typing import Any

import torch

from twophase_labs.machine.checks import Draw, amount, compare, integers, reject, unchanged
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


MASK = exercise("5.11", "What a token sees", "visible", points=2, minutes=6, lines=3, is_extra=True, time_limit_s=10)
MASK.objective = "write the mask of a window with sinks, by positions"
MASK.hints = (
    "Three conditions on a key's position: not in the future; in the window, or a sink.",
    "The window holds `window` positions and ends with the query's own: the first is queries - window + 1.",
    "Sinks are early, not exempt: a query at position 1 does not see a sink at position 3. And & binds like | does "
    "not: use brackets.",
)


def mask_of(answer: Any, queries: torch.Tensor, keys: torch.Tensor, window: int, num_sinks: int) -> torch.Tensor:
    with unchanged(queries=queries, keys=keys):
        got = answer.visible(queries, keys, window, num_sinks)
    shape = torch.broadcast_shapes(queries.shape, keys.shape)
    if not isinstance(got, torch.Tensor):
        reject(f"the mask should be a tensor; got {got!r}")
    if got.shape != shape or got.dtype != torch.bool:
        reject(f"the mask has shape {list(got.shape)} and dtype {got.dtype}, expected {list(shape)} and torch.bool")
    return got


def require_mask(answer: Any, queries: torch.Tensor, keys: torch.Tensor, window: int, num_sinks: int, of: str) -> None:
    """`of`: 'future', 'window', 'sinks' or 'all': which keys to look at."""
    got = mask_of(answer, queries, keys, window, num_sinks)
    all_queries, all_keys = torch.broadcast_tensors(queries, keys)
    for query, key, seen in zip(
        all_queries.flatten().tolist(), all_keys.flatten().tolist(), got.flatten().tolist(), strict=True
    ):
        kind = "future" if key > query else "sinks" if key < num_sinks else "window"
        if of not in ("all", kind) or seen == is_seen(query, key, window, num_sinks):
            continue
        reject(
            f"with window {window} and {amount(num_sinks, 'sink')} the query at {query} "
            f"{'sees' if seen else 'does not see'} the key at {key}; it should{' not' if seen else ''}"
        )


def both(num_tokens: int, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.arange(start, start + num_tokens)
    return positions[:, None], positions


@MASK.check("hides the future", num_tokens=(1, 8))
def hides_future(answer: Any, draw: Draw, num_tokens: int) -> None:
    """No key after the query, and a sink after the query is a key after the query."""
    require_mask(answer, *both(num_tokens), 3, 0, "future")
    require_mask(answer, *both(num_tokens), 3, 4, "future")


@MASK.check("sees itself and window - 1 before", num_tokens=(1, 9))
def sees_window(answer: Any, draw: Draw, num_tokens: int) -> None:
    """A window of 1 sees the token alone; one as long as the text sees everything before."""
    for window in (1, 2, 5, num_tokens):
        require_mask(answer, *both(num_tokens, start=10), window, 0, "window")


@MASK.check("sees the sinks", num_tokens=(2, 12, 100))
def sees_sinks(answer: Any, draw: Draw, num_tokens: int) -> None:
    """The first num_sinks positions of the text, 0 to num_sinks - 1, for every query from then on."""
    for num_sinks in (1, 4):
        require_mask(answer, *both(num_tokens), 3, num_sinks, "all")


@MASK.check("goes by positions")
def takes_positions(answer: Any, draw: Draw) -> None:
    """The cache has gaps, and a chunk begins in the middle: which row or column it is says nothing."""
    # A chunk of queries in the middle of a text, keys with a gap, and pages in any order.
    for _ in range(10):
        window, num_sinks, start = draw.integer(2, 12), draw.integer(0, 5), draw.integer(20, 60)
        queries = torch.arange(start, start + draw.integer(1, 5))
        keys = torch.cat([torch.arange(4), torch.arange(start - window - 2, start + len(queries))])
        require_mask(answer, queries[:, None], keys, window, num_sinks, "all")
        require_mask(answer, queries[:, None], keys[draw.permutation(len(keys))], window, num_sinks, "all")


@MASK.check("sees as far as the window")
def sees_far(answer: Any, draw: Draw) -> None:
    """Windows have thousands of positions, texts even more."""
    # A window of thousands, far from the start.
    queries, keys = torch.tensor([[100_000], [70_000]]), torch.tensor([0, 3, 4, 60_000, 67_233, 67_234, 70_000, 97_233])
    require_mask(answer, queries, keys, 32_767, 4, "all")
    require_mask(answer, queries, keys, 2_768, 0, "all")


@MASK.check("takes several sequences")
def takes_rows(answer: Any, draw: Draw) -> None:
    """With queries [3, 1] and keys [3, 9] the result is [3, 9]: plain comparisons broadcast by themselves."""
    # Several sequences at once, each with its own keys.
    lengths = draw.integers(5, 50, 3, 1)
    require_mask(answer, lengths, (lengths - draw.integers(0, 12, 3, 9)).clamp(min=0), 6, 2, "all")
