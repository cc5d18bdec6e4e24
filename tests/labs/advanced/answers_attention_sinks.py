"""Answers that prove the checks of exercises 5.9 and 5.11."""

from twophase_labs.machine.bank import right, wrong

SHORT, WINDOW, SINKS = "keeps all of a short sequence", "keeps what the next token sees", "keeps the sinks"
GIVES, ORDER, FUTURE = "gives up what nobody sees", "names each block once, in order", "hides the future"
ITSELF, SEES, POSITIONS = "sees itself and window - 1 before", "sees the sinks", "goes by positions"
SEES_AS, ROWS = "sees as far as the window", "takes several sequences"

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
    "5.11": (
        wrong("sees the future", {1: "keys == keys"}, by=FUTURE),
        wrong("sinks from everywhere", {4: "is_past & in_window | is_sink"}, by=FUTURE),
        wrong("one key too few", {2: "keys > queries - window + 1"}, by=ITSELF),
        wrong("no sinks", {4: "is_past & in_window"}, by=SEES),
        wrong("sinks must be in the window", {4: "is_past & in_window & ((num_sinks == 0) | is_sink)"}, by=SEES),
        wrong("the first columns are sinks", "keys < num_sinks", "torch.arange(keys.shape[-1]) < num_sinks",
              by=POSITIONS),
        wrong("windows of at most 4096", {2: "keys > queries - min(window, 4096)"}, by=SEES_AS),
        wrong("one sequence alone",
              "is_past = keys <= queries\n    in_window = keys > queries - window\n    is_sink = keys < num_sinks\n    return is_past & (in_window | is_sink)",
              "q, k = (queries.flatten()[:, None], keys.flatten())\n    return (k <= q) & ((k > q - window) | (k < num_sinks))",
              by=ROWS),
        right("by the first key",
              "is_past = keys <= queries\n    in_window = keys > queries - window\n    is_sink = keys < num_sinks\n    return is_past & (in_window | is_sink)",
              "first = torch.where(keys < num_sinks, torch.zeros_like(queries), queries - window + 1)\n    return torch.logical_and(keys >= first, keys <= queries)"),
        right("by distance",
              "is_past = keys <= queries\n    in_window = keys > queries - window\n    is_sink = keys < num_sinks\n    return is_past & (in_window | is_sink)",
              "distance = queries - keys\n    return (distance >= 0) & ((distance < window) | (keys < num_sinks))"),
    ),
}
