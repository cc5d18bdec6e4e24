"""Prefix caching: a hash chain over full blocks."""

from typing import Any

from twophase_labs.advanced.prefix_hashing import as_bytes, digest
from twophase_labs.machine.checks import Draw, amount, compare, reject, unchanged
from twophase_labs.machine.exercise import exercise

HASHES = exercise(
    "5.1", "A name for everything up to here", "block_hashes", points=2, minutes=6, lines=3, time_limit_s=10
)
HASHES.objective = "name a block by its contents and by all that precedes it"
HASHES.hints = (
    "K and V of a token depend on every token before it. So must the name of the block that holds them.",
    "A block's hash is made of two things: the hash of the block before it, and its own tokens.",
    "The first block has nothing before it; its chain starts at the digest of the salt: `digest(salt.encode())`.",
)


def tokens(draw: Draw, num_tokens: int) -> list[int]:
    return [draw.integer(0, 50_000) for _ in range(num_tokens)]


def chain_of(answer: Any, token_ids: list[int], block_size: int, *salt: str) -> list[bytes]:
    """The learner's digests, made sure to be a list of digests."""
    with unchanged(token_ids=token_ids):
        got = answer.block_hashes(token_ids, block_size, *salt)
    if not isinstance(got, list) or not all(isinstance(one, bytes) and len(one) == 16 for one in got):
        reject(f"the result is {got!r:.100}, expected a list of digests, each 16 bytes")
    return got


@HASHES.check("names full blocks, and only these", num_tokens=(4, 3, 9, 0, 5, 1000), block_size=(4, 4, 4, 16, 1, 12))
def covers_full_blocks(answer: Any, draw: Draw, num_tokens: int, block_size: int) -> None:
    """A block that is not full will be written to again: nobody else may rely on it."""
    got = chain_of(answer, tokens(draw, num_tokens), block_size)
    expected = sum(1 for end in range(1, num_tokens + 1) if end % block_size == 0)
    if len(got) != expected:
        of = f"{amount(num_tokens, 'token')} in blocks of {block_size}"
        reject(f"{of}: yours gives {amount(len(got), 'hash', 'hashes')}, expected {expected}")


@HASHES.check("gives equal prefixes equal names", block_size=(1, 4, 16))
def finds_equal_prefixes(answer: Any, draw: Draw, block_size: int) -> None:
    """Nothing but the salt and the tokens up to a block's end may go into its hash."""
    shared = tokens(draw, 4 * block_size)
    one = chain_of(answer, shared + tokens(draw, 2 * block_size), block_size)
    other = chain_of(answer, shared + tokens(draw, block_size + 1), block_size)
    compare(other[:4], one[:4], what="the hashes of four blocks that two prompts share", axes=("block",))
    compare(chain_of(answer, list(shared), block_size), one[:4], what="the same, asked again", axes=("block",))


@HASHES.check("tells different blocks apart")
def tells_blocks_apart(answer: Any, draw: Draw) -> None:
    """`as_bytes` writes each token in 8 bytes, so that nothing runs together; order matters, too."""
    # Digits that run together, and sums that agree.
    for one, other in (([1, 23], [12, 3]), ([1, 2], [2, 1]), ([0, 3], [1, 2]), ([256, 0], [0, 256])):
        if chain_of(answer, one, 2) == chain_of(answer, other, 2):
            reject(f"the blocks {one} and {other} have the same hash")


@HASHES.check("depends on each of a block's tokens", block_size=(1, 5))
def sees_every_token(answer: Any, draw: Draw, block_size: int) -> None:
    """Does every token of the block go into its digest, with all of its bytes?"""
    token_ids = tokens(draw, 3 * block_size)
    before = chain_of(answer, token_ids, block_size)
    for position in {0, block_size - 1, block_size, 2 * block_size - 1, 3 * block_size - 1}:
        for step in (1, 256, 65_536):
            changed = list(token_ids)
            changed[position] += step
            block = position // block_size
            if chain_of(answer, changed, block_size)[block] == before[block]:
                reject(
                    f"block {block} has the same hash with another token at position {position}",
                    f"{token_ids[position]} became {changed[position]}; blocks of {block_size}",
                )


@HASHES.check("depends on everything before", block_size=(1, 4))
def remembers_the_past(answer: Any, draw: Draw, block_size: int) -> None:
    """The same 16 tokens behind another text have other K and V. Chain: the parent's hash goes into the child's,
    and with it the whole past."""
    token_ids = tokens(draw, 4 * block_size)
    before = chain_of(answer, token_ids, block_size)
    for changed_block in range(3):
        changed = list(token_ids)
        changed[changed_block * block_size] += 1
        after = chain_of(answer, changed, block_size)
        same = [block for block in range(changed_block + 1, 4) if after[block] == before[block]]
        if same:
            reject(f"a token of block {changed_block} changed, and block {same[0]} has the same hash as before")
    again = chain_of(answer, token_ids[:block_size] * 3, block_size)
    if len(set(again)) < 3:
        reject("one and the same block three times in a row: two of its hashes are equal, and their pasts are not")


@HASHES.check("depends on the salt", num_blocks=(1, 3))
def keeps_salts_apart(answer: Any, draw: Draw, num_blocks: int) -> None:
    """If the chain starts at the salt's digest, every block of the chain depends on it."""
    token_ids = tokens(draw, 3 * num_blocks)
    chains = {salt: chain_of(answer, token_ids, 3, salt) for salt in ("", "blue", "green")}
    for one, other in (("", "blue"), ("blue", "green")):
        same = [block for block in range(num_blocks) if chains[one][block] == chains[other][block]]
        if same:
            reject(f"block {same[0]} has the same hash under the salts {one!r} and {other!r}")
    compare(chain_of(answer, token_ids, 3), chains[""], what="the hashes without a salt", axes=("block",))
    compare(chain_of(answer, token_ids, 3, "blue"), chains["blue"], what="the hashes of a salt", axes=("block",))


@HASHES.check("is the chain of the text", salt=("", "blue", "Zürich", "東京"), num_blocks=(1, 3, 2, 200))
def is_the_texts_chain(answer: Any, draw: Draw, salt: str, num_blocks: int) -> None:
    """hash[0] = digest(digest(salt) + tokens of block 0), then hash[i] = digest(hash[i - 1] + tokens of block i). A
    salt is any string; `encode()` gives its bytes."""
    token_ids, parent, expected = tokens(draw, 3 * num_blocks + 1), digest(salt.encode()), []
    for start in range(0, 3 * num_blocks, 3):
        parent = digest(parent + as_bytes(token_ids[start : start + 3]))
        expected.append(parent)
    for block, (one, other) in enumerate(zip(chain_of(answer, token_ids, 3, salt), expected, strict=True)):
        if one != other:
            place = "digest(digest(salt) + tokens)" if not block else "digest(the hash before + tokens)"
            reject(f"with the salt {salt!r} the hash of block {block} is not {place}")


@HASHES.check("reads each token once")
def reads_each_token_once(answer: Any, draw: Draw) -> None:
    """The parent's hash stands for all that precedes: no need to digest it again."""
    # The bytes that go through `digest`: in a chain as many as there are tokens, times 8, and 16 for each link.
    names, num_bytes = getattr(answer.block_hashes, "__globals__", {}), 0

    def counted(data: bytes) -> bytes:
        nonlocal num_bytes
        num_bytes += len(data)
        return digest(data)

    if "digest" not in names:
        return  # it has a digest of its own, and was found to be right
    token_ids, real = tokens(draw, 400), names["digest"]
    names["digest"] = counted
    try:
        chain_of(answer, token_ids, 4)
    finally:
        names["digest"] = real
    if num_bytes > 2 * (8 * 400 + 16 * 101):
        reject(f"{num_bytes:,} bytes are digested for 400 tokens in blocks of 4", "in a chain it is 4,800")
