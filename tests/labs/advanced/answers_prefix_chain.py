"""Answers that prove the check of exercise 5.1."""

from twophase_labs.machine.bank import right, wrong

FULL, EQUAL = "names full blocks, and only these", "gives equal prefixes equal names"
APART, TOKENS = "tells different blocks apart", "depends on each of a block's tokens"
PAST, SALT, CHAIN = "depends on everything before", "depends on the salt", "is the chain of the text"
ONCE = "reads each token once"

ALWAYS_FROM_THE_START = """
def block_hashes(token_ids, block_size, salt=""):
    def chain(num_blocks):
        if not num_blocks:
            return digest(salt.encode())
        block = token_ids[(num_blocks - 1) * block_size : num_blocks * block_size]
        return digest(chain(num_blocks - 1) + as_bytes(block))

    return [chain(index + 1) for index in range(len(token_ids) // block_size)]
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
ACCUMULATED = """
import itertools

def block_hashes(token_ids, block_size, salt=""):
    blocks = [token_ids[i : i + block_size] for i in range(0, len(token_ids) - block_size + 1, block_size)]
    start = digest(salt.encode("utf-8"))
    steps = itertools.accumulate(blocks, lambda before, block: digest(before + as_bytes(block)), initial=start)
    return list(steps)[1:]
"""

# fmt: off
BANKS = {
    "5.1": (
        wrong("counts the block that is not full", {1: "-(-len(token_ids) // block_size)"}, by=FULL),
        wrong("the length of the prompt in the chain", ".encode(", ".encode() + as_bytes([len(token_ids)]", by=EQUAL),
        wrong("the parent alone", {3: "parent"}, by=APART),
        wrong("all but the last token", {3: "parent + as_bytes(block[:-1])"}, by=TOKENS),
        wrong("the block alone", {3: "salt.encode() + as_bytes(block)"}, by=PAST),
        wrong("no salt", {2: 'digest(b"")'}, by=SALT),
        wrong("a non-ASCII salt is ignored", ".encode(", ".encode('ascii', 'ignore'", by=CHAIN),
        wrong("every chain from the start", ALWAYS_FROM_THE_START, by=ONCE),
        right("cutting the front off", RUNNING),
        right("accumulated", ACCUMULATED),
    ),
}
