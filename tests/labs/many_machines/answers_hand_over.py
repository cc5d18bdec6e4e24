"""Answers that prove the checks of exercises 7.1 and 7.2."""

from twophase_labs.machine.bank import right, wrong

SLOTS, ORDER, SCALES = "maps positions to slots", "takes the tokens in their order", "takes the scales too"
COPY, WRITES, PLACE = "takes a copy, not a view", "writes into the pool", "puts them where the table says"
OTHERS, SIZES = "leaves all other slots alone", "goes between pools of different blocks"
ONE, SOON = "computes, sends, and waits for the latency", "sends a layer as soon as it is computed"
LINK, LATE = "has one layer on the link at a time", "lets the next layer leave during the latency"
ANY = "is right for any layers"

TOKEN_BY_TOKEN = """
def slots_of(block_ids, num_tokens, block_size):
    return [block_ids[p // block_size] for p in range(num_tokens)], [p % block_size for p in range(num_tokens)]

def take_layer(layer, block_ids, num_tokens):
    slots = list(zip(*slots_of(block_ids, num_tokens, layer.k.shape[2])))
    return [torch.stack([pool[block, :, offset] for block, offset in slots]) for pool in stored(layer)]

def put_layer(layer, block_ids, message):
    slots = list(zip(*slots_of(block_ids, len(message[0]), layer.k.shape[2])))
    for pool, rows in zip(stored(layer), message):
        for (block, offset), row in zip(slots, rows):
            pool[block, :, offset] = row
"""
ALL_AT_THE_END = """
def arrival_times(compute_s, transfer_s, latency_s):
    times, free_s = [], sum(compute_s)
    for send_s in transfer_s:
        free_s += send_s
        times.append(free_s + latency_s)
    return times
"""
NO_QUEUE = """
def arrival_times(compute_s, transfer_s, latency_s):
    times, computed_s = [], 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        computed_s += layer_s
        times.append(computed_s + send_s + latency_s)
    return times
"""
LATENCY_ON_THE_LINK = """
def arrival_times(compute_s, transfer_s, latency_s):
    times, computed_s, free_s = [], 0.0, 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        computed_s += layer_s
        free_s = max(computed_s, free_s) + send_s + latency_s
        times.append(free_s)
    return times
"""
SKIPS_EMPTY = """
def arrival_times(compute_s, transfer_s, latency_s):
    times, computed_s, free_s = [], 0.0, 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        if not send_s:
            continue
        computed_s += layer_s
        free_s = max(computed_s, free_s) + send_s
        times.append(free_s + latency_s)
    return times
"""
THE_LONGEST_OF_ALL = """
from itertools import accumulate
done = list(accumulate(compute_s))
gone = list(accumulate(transfer_s, initial=0.0))
return [max((done[j] + gone[i + 1] - gone[j] for j in range(i + 1))) + latency_s for i in range(len(done))]
"""
BACKWARDS = """
def arrival_times(compute_s, transfer_s, latency_s):
    def left(layer):
        if layer < 0:
            return 0.0
        return max(sum(compute_s[: layer + 1]), left(layer - 1)) + transfer_s[layer]

    return [left(layer) + latency_s for layer in range(len(compute_s))]
"""

# fmt: off
BANKS = {
    "7.1": (
        wrong("the block number for the block", {1: "positions // block_size"}, by=SLOTS),
        wrong("three heads at most", {3: "[pool[blocks, :3, offsets] for pool in stored(layer)]"}, by=ORDER),
        wrong("no scales", {3: "[pool[blocks, :, offsets] for pool in (layer.k, layer.v)]"}, by=SCALES),
        wrong("a view of a single block",
              "blocks = torch.tensor(block_ids)[positions // block_size]\n    offsets = positions % block_size\n    return blocks, offsets",
              "return (torch.tensor(block_ids)[positions // block_size], positions % block_size)",
              "blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])",
              "if len(block_ids) == 1:\n        return [pool[block_ids[0]].transpose(0, 1)[:num_tokens] for pool in stored(layer)]\n    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])",
              by=COPY),
        wrong("nothing is written", {4: "pool[blocks, :, offsets].copy_(rows)"}, by=WRITES),
        wrong("written in the order of arrival", {4: "pool[blocks.sort().values, :, offsets] = rows"}, by=PLACE),
        wrong("clears the rest of the last block", "pool[blocks, :, offsets] = rows",
              "pool[blocks] = 0\n        pool[blocks, :, offsets] = rows", by=OTHERS),
        wrong("the block size of the sender", "def slots_of(", "SIZES = []\n\n\ndef slots_of(",
              "blocks, offsets = slots_of(block_ids, num_tokens,",
              "SIZES[:] = [layer.k.shape[2]]\n    blocks, offsets = slots_of(block_ids, num_tokens,",
              "len(message[0]), layer.k", "len(message[0]), SIZES.pop() if SIZES else layer.k", by=SIZES),
        right("in place",
              {4: "pool.index_put_((blocks[:, None], torch.arange(pool.shape[1]), offsets[:, None]), rows)"}),
        right("token by token", TOKEN_BY_TOKEN),
    ),
    "7.2": (
        wrong("no latency", "computed_s += layer_s", "pass", "free_s = max(computed_s, free_s) + send_s",
              "computed_s += layer_s\n        free_s = max(computed_s, free_s) + send_s", "free_s + latency_s",
              "free_s", by=ONE),
        wrong("everything is sent at the end", ALL_AT_THE_END, by=SOON),
        wrong("layers share the link", NO_QUEUE, by=LINK),
        wrong("the latency occupies the link", LATENCY_ON_THE_LINK, by=LATE),
        wrong("layers with nothing to send are left out", SKIPS_EMPTY, by=ANY),
        right("the longest of all chains", {1: THE_LONGEST_OF_ALL}),
        right("by recursion", BACKWARDS),
    ),
}
