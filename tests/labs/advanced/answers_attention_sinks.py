"""Answers that prove the checks of exercises 5.11 and 5.13."""

from tests.labs.advanced.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

SHORT, WINDOW, SINKS, GIVES, ORDER = (
    "keeps all of a short sequence",
    "keeps what the next token sees",
    "keeps the sinks",
    "gives up what nobody sees",
    "names each block once, in order",
)
FUTURE, ITSELF, SEES, POSITIONS, ROWS = (
    "hides the future",
    "sees itself and window - 1 before",
    "sees the sinks",
    "goes by positions",
    "takes several sequences",
)
BY_TOKENS = """
def kept_blocks(num_tokens, block_size, window, num_sinks):
    tokens = [t for t in range(num_tokens) if t < num_sinks or t > num_tokens - window]
    blocks = {t // block_size for t in tokens}
    if num_tokens % block_size:
        blocks.add(num_tokens // block_size)  # the next token is written there
    return sorted(blocks)
"""
WITHOUT_A_TAIL = """
def kept_blocks(num_tokens, block_size, window, num_sinks):
    return sorted({t // block_size for t in range(num_tokens) if t < num_sinks or t > num_tokens - window})
"""
TWICE = """
def kept_blocks(num_tokens, block_size, window, num_sinks):
    num_blocks = -(-num_tokens // block_size)
    sinks = range(min(num_blocks, -(-num_sinks // block_size)))
    first = max(0, num_tokens + 1 - window) // block_size
    return [*sinks, *range(first, num_blocks)]
"""
AS_RANGES = """
def kept_blocks(num_tokens, block_size, window, num_sinks):
    end = (num_tokens + block_size - 1) // block_size
    sink_end = min(end, (num_sinks + block_size - 1) // block_size)
    start = max(sink_end, (num_tokens - window + 1) // block_size)
    return list(range(sink_end)) + list(range(start, end))
"""
BY_INDEX = """
def visible(queries, keys, window, num_sinks):
    shape = torch.broadcast_shapes(queries.shape, keys.shape)
    q = torch.arange(shape[0])[:, None] + (shape[1] - shape[0])
    k = torch.arange(shape[1])
    return (k <= q) & ((k > q - window) | (k < num_sinks))
"""
COLUMNS_ARE_KEYS = """
def visible(queries, keys, window, num_sinks):
    is_past = keys <= queries
    in_window = keys > queries - window
    is_sink = torch.arange(keys.shape[-1]) < num_sinks
    return is_past & (in_window | is_sink)
"""
DISTANCES = """
def visible(queries, keys, window, num_sinks):
    distance = queries - keys
    return (distance >= 0) & ((distance < window) | (keys < num_sinks))
"""
BY_WHERE = """
def visible(queries, keys, window, num_sinks):
    first = torch.where(keys < num_sinks, torch.zeros_like(queries), queries - window + 1)
    return torch.logical_and(keys >= first, keys <= queries)
"""
ADDS = """
def visible(queries, keys, window, num_sinks):
    past = keys <= queries
    return torch.where(past & ((keys > queries - window) | (keys < num_sinks)), 0.0, -math.inf)
"""
ONE_SEQUENCE = """
def visible(queries, keys, window, num_sinks):
    q, k = queries.flatten()[:, None], keys.flatten()
    return (k <= q) & ((k > q - window) | (k < num_sinks))
"""

BANKS = opened_all(
    {
        "5.11": Bank(
            wrong=(
                Wrong(
                    "negative positions",
                    {2: "num_tokens + 1 - window", 3: "first_seen // block_size % num_blocks"},
                    rejected_by=SHORT,
                ),
                Wrong(
                    "forgets the sequence that is shorter", {2: "num_tokens + 1 - min(window, 8)"}, rejected_by=SHORT
                ),
                Wrong("one token too soon", {2: "max(0, num_tokens + 2 - window)"}, rejected_by=WINDOW),
                Wrong("the next whole block", {3: "-(-first_seen // block_size)"}, rejected_by=WINDOW),
                Wrong(
                    "the window in whole blocks",
                    {3: "max(0, num_blocks - -(-window // block_size))"},
                    rejected_by=WINDOW,
                ),
                Wrong("gives up the page to write into", WITHOUT_A_TAIL, rejected_by=WINDOW),
                Wrong("no sinks", {1: "0"}, rejected_by=SINKS),
                Wrong("sinks rounded down", {1: "num_sinks // block_size"}, rejected_by=SINKS),
                Wrong("one block of sinks", {1: "min(num_sinks, 1)"}, rejected_by=SINKS),
                Wrong("a block for each sink", {1: "num_sinks"}, rejected_by=GIVES),
                Wrong("one token too late", {2: "max(0, num_tokens - window)"}, rejected_by=GIVES),
                Wrong("a block to spare", {3: "max(0, first_seen // block_size - 1)"}, rejected_by=GIVES),
                Wrong("keeps everything", {4: "True"}, rejected_by=GIVES),
                Wrong("names a block twice", TWICE, rejected_by=ORDER),
            ),
            right=(Right("token by token", BY_TOKENS), Right("as two ranges", AS_RANGES)),
        ),
        "5.13": Bank(
            wrong=(
                Wrong("sees the future", {1: "keys == keys"}, rejected_by=FUTURE),
                Wrong("sinks from everywhere", {4: "is_past & in_window | is_sink"}, rejected_by=FUTURE),
                Wrong("not even itself", {1: "keys < queries"}, rejected_by=ITSELF),
                Wrong("one key too many", {2: "keys >= queries - window"}, rejected_by=ITSELF),
                Wrong("one key too few", {2: "keys > queries - window + 1"}, rejected_by=ITSELF),
                Wrong("a mask to add", ADDS, rejected_by=FUTURE),
                Wrong("no sinks", {4: "is_past & in_window"}, rejected_by=SEES),
                Wrong("one sink too many", {3: "keys <= num_sinks"}, rejected_by=SEES),
                Wrong(
                    "sinks must be in the window",
                    {4: "is_past & in_window & ((num_sinks == 0) | is_sink)"},
                    rejected_by=SEES,
                ),
                Wrong("by row and column", BY_INDEX, rejected_by=POSITIONS),
                Wrong("the first columns are sinks", COLUMNS_ARE_KEYS, rejected_by=POSITIONS),
                Wrong("one sequence alone", ONE_SEQUENCE, rejected_by=ROWS),
            ),
            right=(Right("by distance", DISTANCES), Right("by the first key", BY_WHERE)),
        ),
    }
)
