"""Answers that prove the check of exercise 5.9."""

from twophase_labs.machine.bank import right, wrong

SHORT, WINDOW, SINKS = "keeps all of a short sequence", "keeps what the next token sees", "keeps the sinks"
GIVES, ORDER = "gives up what nobody sees", "names each block once, in order"

NAMES_A_BLOCK_TWICE = """
num_blocks = -(-num_tokens // block_size)
sinks = range(min(num_blocks, -(-num_sinks // block_size)))
first = max(0, num_tokens + 1 - window) // block_size
return [*sinks, *range(first, num_blocks)]
"""
AS_TWO_RANGES = """
end = (num_tokens + block_size - 1) // block_size
sink_end = min(end, (num_sinks + block_size - 1) // block_size)
start = max(sink_end, (num_tokens - window + 1) // block_size)
return list(range(sink_end)) + list(range(start, end))
"""
BY_TOKENS = """
def kept_blocks(num_tokens, block_size, window, num_sinks):
    tokens = [t for t in range(num_tokens) if t < num_sinks or t > num_tokens - window]
    blocks = {t // block_size for t in tokens}
    if num_tokens % block_size:
        blocks.add(num_tokens // block_size)  # the next token is written there
    return sorted(blocks)
"""

# fmt: off
BANKS = {
    "5.9": (
        wrong("forgets the sequence that is shorter", "max(0, num_tokens + 1 - window",
              "num_tokens + 1 - min(window, 8", by=SHORT),
        wrong("gives up the page to write into",
              {1: "return sorted({t // block_size for t in range(num_tokens) if t < num_sinks or t > num_tokens - window})"},
              by=WINDOW),
        wrong("block sizes that are powers of two", "first_seen // block_size",
              "first_seen >> block_size.bit_length() - 1", by=WINDOW),
        wrong("no sinks", "-(-num_sinks // block_size)", "0", by=SINKS),
        wrong("one block of sinks", "-(-num_sinks // block_size", "min(num_sinks, 1", by=SINKS),
        wrong("one token too late", "num_tokens + 1", "num_tokens", by=GIVES),
        wrong("a block for each sink", "-(-num_sinks // block_size)", "num_sinks", by=GIVES),
        wrong("names a block twice", {1: NAMES_A_BLOCK_TWICE}, by=ORDER),
        right("as two ranges", {1: AS_TWO_RANGES}),
        right("token by token", BY_TOKENS),
    ),
}
