"""Answers that prove the check of exercise 7.1."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SLOTS, ORDER, SCALES, COPY, WRITES, PLACE, OTHERS, SIZES = (
    "maps positions to slots",
    "takes the tokens in their order",
    "takes the scales too",
    "takes a copy, not a view",
    "writes into the pool",
    "puts them where the table says",
    "leaves all other slots alone",
    "goes between pools of different blocks",
)
WHOLE_BLOCKS = """
def slots_of(block_ids, num_tokens, block_size):
    positions = torch.arange(len(block_ids) * block_size)
    return torch.tensor(block_ids)[positions // block_size], positions % block_size


def take_layer(layer, block_ids, num_tokens):
    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])
    return [pool[blocks, :, offsets] for pool in stored(layer)]


def put_layer(layer, block_ids, message):
    blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2])
    for pool, rows in zip(stored(layer), message, strict=True):
        pool[blocks, :, offsets] = rows
"""
PADDED_MESSAGE = """
def slots_of(block_ids, num_tokens, block_size):
    positions = torch.arange(num_tokens)
    return torch.tensor(block_ids)[positions // block_size], positions % block_size


def take_layer(layer, block_ids, num_tokens):
    blocks, offsets = slots_of(block_ids, len(block_ids) * layer.k.shape[2], layer.k.shape[2])
    return [pool[blocks, :, offsets] for pool in stored(layer)]


def put_layer(layer, block_ids, message):
    blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2])
    for pool, rows in zip(stored(layer), message, strict=True):
        pool[blocks, :, offsets] = rows
"""
PADS_THE_LAST_BLOCK = """
def slots_of(block_ids, num_tokens, block_size):
    positions = torch.arange(num_tokens)
    return torch.tensor(block_ids)[positions // block_size], positions % block_size


def take_layer(layer, block_ids, num_tokens):
    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])
    return [pool[blocks, :, offsets] for pool in stored(layer)]


def put_layer(layer, block_ids, message):
    block_size = layer.k.shape[2]
    for pool, rows in zip(stored(layer), message, strict=True):
        for number, block in enumerate(block_ids):
            pool[block] = 0
            part = rows[number * block_size : (number + 1) * block_size]
            pool[block, :, : len(part)] = part.transpose(0, 1)
"""
A_VIEW = """
def slots_of(block_ids, num_tokens, block_size):
    positions = torch.arange(num_tokens)
    return torch.tensor(block_ids)[positions // block_size], positions % block_size


def take_layer(layer, block_ids, num_tokens):
    if len(block_ids) == 1:
        return [pool[block_ids[0]].transpose(0, 1)[:num_tokens] for pool in stored(layer)]
    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])
    return [pool[blocks, :, offsets] for pool in stored(layer)]


def put_layer(layer, block_ids, message):
    blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2])
    for pool, rows in zip(stored(layer), message, strict=True):
        pool[blocks, :, offsets] = rows
"""
SIZE_REMEMBERED = """
SIZE = []


def slots_of(block_ids, num_tokens, block_size):
    positions = torch.arange(num_tokens)
    return torch.tensor(block_ids)[positions // block_size], positions % block_size


def take_layer(layer, block_ids, num_tokens):
    SIZE[:] = [layer.k.shape[2]]
    blocks, offsets = slots_of(block_ids, num_tokens, SIZE[0])
    return [pool[blocks, :, offsets] for pool in stored(layer)]


def put_layer(layer, block_ids, message):
    block_size = SIZE.pop() if SIZE else layer.k.shape[2]
    blocks, offsets = slots_of(block_ids, len(message[0]), block_size)
    for pool, rows in zip(stored(layer), message, strict=True):
        pool[blocks, :, offsets] = rows
"""
BY_BLOCKS = """
def slots_of(block_ids, num_tokens, block_size):
    blocks = torch.tensor(block_ids).repeat_interleave(block_size)[:num_tokens]
    return blocks, torch.arange(num_tokens).remainder(block_size)


def take_layer(layer, block_ids, num_tokens):
    return [pool[block_ids].transpose(1, 2).flatten(0, 1)[:num_tokens].clone() for pool in stored(layer)]


def put_layer(layer, block_ids, message):
    block_size = layer.k.shape[2]
    for pool, rows in zip(stored(layer), message, strict=True):
        for block, part in zip(block_ids, rows.split(block_size), strict=True):
            pool[block, :, : len(part)] = part.transpose(0, 1)
"""
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

BANKS = {
    "7.1": Bank(
        wrong=(
            Wrong("the block number for the block", {1: "positions // block_size"}, SLOTS),
            Wrong("the table by offset", {1: "torch.tensor(block_ids)[positions % len(block_ids)]"}, SLOTS),
            Wrong(
                "blocks sorted as in the pool", {1: "torch.tensor(sorted(block_ids))[positions // block_size]"}, SLOTS
            ),
            Wrong("the position for the offset", {2: "positions.clamp(max=block_size - 1)"}, SLOTS),
            Wrong("whole blocks", WHOLE_BLOCKS, SLOTS),
            Wrong("padded to whole blocks in the message", PADDED_MESSAGE, ORDER),
            Wrong(
                "ids of blocks in a byte",
                {1: "torch.tensor(block_ids).remainder(256)[positions // block_size]"},
                SLOTS,
            ),
            Wrong("three heads at most", {3: "[pool[blocks, :3, offsets] for pool in stored(layer)]"}, ORDER),
            Wrong("no scales", {3: "[pool[blocks, :, offsets] for pool in (layer.k, layer.v)]"}, SCALES),
            Wrong("K twice", {3: "[layer.k[blocks, :, offsets] for pool in stored(layer)]"}, ORDER),
            Wrong("a view of a single block", A_VIEW, COPY),
            Wrong("written in the order of arrival", {4: "pool[blocks.sort().values, :, offsets] = rows"}, PLACE),
            Wrong("nothing is written", {4: "pool[blocks, :, offsets].copy_(rows)"}, WRITES),
            Wrong(
                "written into a copy",
                {4: "pool[blocks][torch.arange(len(rows)), :, offsets] = rows"},
                WRITES,
            ),
            Wrong("the last token is not written", {4: "pool[blocks[:-1], :, offsets[:-1]] = rows[:-1]"}, PLACE),
            Wrong("clears the rest of the last block", PADS_THE_LAST_BLOCK, OTHERS),
            Wrong("the block size of the sender", SIZE_REMEMBERED, SIZES),
        ),
        right=(
            Right("block by block", BY_BLOCKS),
            Right("token by token", TOKEN_BY_TOKEN),
            Right(
                "in place",
                {4: "pool.index_put_((blocks[:, None], torch.arange(pool.shape[1]), offsets[:, None]), rows)"},
            ),
        ),
    ),
}
