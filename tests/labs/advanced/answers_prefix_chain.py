"""Answers that prove the check of exercise 5.1."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

FULL, EQUAL, APART, TOKENS, PAST, SALT, CHAIN, ONCE = (
    "names full blocks, and only these",
    "gives equal prefixes equal names",
    "tells different blocks apart",
    "depends on each of a block's tokens",
    "depends on everything before",
    "depends on the salt",
    "is the chain of the text",
    "reads each token once",
)
TEXT_OF_TOKENS = """
def block_hashes(token_ids, block_size, salt=""):
    parent, hashes = digest(salt.encode()), []
    for end in range(block_size, len(token_ids) + 1, block_size):
        text = "".join(str(token) for token in token_ids[end - block_size : end])
        parent = digest(parent + text.encode())
        hashes.append(parent)
    return hashes
"""
SALT_AT_THE_END = """
def block_hashes(token_ids, block_size, salt=""):
    parent, hashes = b"", []
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = digest(parent + as_bytes(token_ids[end - block_size : end]))
        hashes.append(parent)
    if hashes:
        hashes[-1] = digest(hashes[-1] + salt.encode()) if salt else hashes[-1]
    return hashes
"""
NO_PARENT_BUT_INDEX = """
def block_hashes(token_ids, block_size, salt=""):
    hashes = []
    for index in range(len(token_ids) // block_size):
        block = token_ids[index * block_size : (index + 1) * block_size]
        hashes.append(digest(salt.encode() + as_bytes([index]) + as_bytes(block)))
    return hashes
"""
WHOLE_PREFIX = """
def block_hashes(token_ids, block_size, salt=""):
    start = digest(salt.encode())
    ends = range(block_size, len(token_ids) + 1, block_size)
    return [digest(start + as_bytes(token_ids[:end])) for end in ends]
"""
UNDIGESTED_SALT = """
def block_hashes(token_ids, block_size, salt=""):
    hashes, before = [], b"salt:" + salt.encode() + bytes(1)
    while len(token_ids) >= block_size:
        before = digest(before + as_bytes(token_ids[:block_size]))
        hashes.append(before)
        token_ids = token_ids[block_size:]
    return hashes
"""
ALWAYS_FROM_THE_START = """
def block_hashes(token_ids, block_size, salt=""):
    def chain(num_blocks):
        if not num_blocks:
            return digest(salt.encode())
        block = token_ids[(num_blocks - 1) * block_size : num_blocks * block_size]
        return digest(chain(num_blocks - 1) + as_bytes(block))

    return [chain(index + 1) for index in range(len(token_ids) // block_size)]
"""
ACCUMULATED = """
def block_hashes(token_ids, block_size, salt=""):
    blocks = [token_ids[i : i + block_size] for i in range(0, len(token_ids) - block_size + 1, block_size)]
    start = digest(salt.encode("utf-8"))
    steps = itertools.accumulate(blocks, lambda before, block: digest(before + as_bytes(block)), initial=start)
    return list(steps)[1:]
"""
RUNNING = """
def block_hashes(token_ids, block_size, salt=""):
    hashes, before = [], digest(bytes(salt, "utf-8"))
    while len(token_ids) >= block_size:
        before = digest(before + as_bytes(token_ids[:block_size]))
        hashes.append(before)
        token_ids = token_ids[block_size:]
    return hashes
"""

BANKS = {
    "5.1": Bank(
        wrong=(
            Wrong("counts the block that is not full", {1: "-(-len(token_ids) // block_size)"}, FULL),
            Wrong("leaves the last block out", {1: "(len(token_ids) - 1) // block_size"}, FULL),
            Wrong("the block alone", {3: "salt.encode() + as_bytes(block)"}, PAST),
            Wrong("its number instead of its past", NO_PARENT_BUT_INDEX, PAST),
            Wrong("the parent alone", {3: "parent"}, APART),
            Wrong("a sum of the tokens", {3: "parent + as_bytes([sum(block)])"}, APART),
            Wrong("sorted tokens", {3: "parent + as_bytes(sorted(block))"}, APART),
            Wrong("digits that run together", TEXT_OF_TOKENS, APART),
            Wrong("the lowest byte of each token", {3: "parent + bytes(t % 256 for t in block)"}, APART),
            Wrong("all but the last token", {3: "parent + as_bytes(block[:-1])"}, TOKENS),
            Wrong("no salt", {2: 'digest(b"")'}, SALT),
            Wrong("the salt in the last block only", SALT_AT_THE_END, SALT),
            Wrong("a salt of its length", {2: "digest(as_bytes([len(salt) // 5]))"}, SALT),
            Wrong(
                "the length of the prompt in the chain",
                {2: "digest(salt.encode() + as_bytes([len(token_ids)]))"},
                EQUAL,
            ),
            Wrong("the whole prefix for each block", WHOLE_PREFIX, CHAIN),
            Wrong("the salt itself, not its digest", UNDIGESTED_SALT, CHAIN),
            Wrong("every chain from the start", ALWAYS_FROM_THE_START, ONCE),
            Wrong("two bytes of each token", {3: "parent + b''.join((t % 65_536).to_bytes(2) for t in block)"}, TOKENS),
        ),
        right=(
            Right("accumulated", "import itertools\n" + ACCUMULATED),
            Right("cutting the front off", RUNNING),
        ),
    ),
}
