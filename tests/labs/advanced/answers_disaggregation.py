"""Answers that prove the check of exercise 5.18."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

ORDER, SCALES, COPY, PLACE, OTHERS, SIZES = (
    "takes the tokens in their order",
    "takes the scales too",
    "takes a copy",
    "puts them where the table says",
    "leaves all other slots alone",
    "goes between pools of different pages",
)
WHOLE_PAGES = """
def slots_of(block_ids, num_tokens, page):
    positions = torch.arange(len(block_ids) * page)
    return torch.tensor(block_ids)[positions // page], positions % page


def take_layer(layer, block_ids, num_tokens):
    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])
    return [pages[blocks, :, offsets] for pages in stored(layer)]


def put_layer(layer, block_ids, message):
    blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2])
    for pages, rows in zip(stored(layer), message, strict=True):
        pages[blocks, :, offsets] = rows
"""
PADS_THE_LAST_PAGE = """
def slots_of(block_ids, num_tokens, page):
    positions = torch.arange(num_tokens)
    return torch.tensor(block_ids)[positions // page], positions % page


def take_layer(layer, block_ids, num_tokens):
    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])
    return [pages[blocks, :, offsets] for pages in stored(layer)]


def put_layer(layer, block_ids, message):
    page = layer.k.shape[2]
    for pages, rows in zip(stored(layer), message, strict=True):
        for number, block in enumerate(block_ids):
            pages[block] = 0
            part = rows[number * page : (number + 1) * page]
            pages[block, :, : len(part)] = part.transpose(0, 1)
"""
A_VIEW = """
def slots_of(block_ids, num_tokens, page):
    positions = torch.arange(num_tokens)
    return torch.tensor(block_ids)[positions // page], positions % page


def take_layer(layer, block_ids, num_tokens):
    if len(block_ids) == 1:
        return [pages[block_ids[0]].transpose(0, 1)[:num_tokens] for pages in stored(layer)]
    blocks, offsets = slots_of(block_ids, num_tokens, layer.k.shape[2])
    return [pages[blocks, :, offsets] for pages in stored(layer)]


def put_layer(layer, block_ids, message):
    blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2])
    for pages, rows in zip(stored(layer), message, strict=True):
        pages[blocks, :, offsets] = rows
"""
SIZE_REMEMBERED = """
PAGE = []


def slots_of(block_ids, num_tokens, page):
    positions = torch.arange(num_tokens)
    return torch.tensor(block_ids)[positions // page], positions % page


def take_layer(layer, block_ids, num_tokens):
    PAGE[:] = [layer.k.shape[2]]
    blocks, offsets = slots_of(block_ids, num_tokens, PAGE[0])
    return [pages[blocks, :, offsets] for pages in stored(layer)]


def put_layer(layer, block_ids, message):
    page = PAGE.pop() if PAGE else layer.k.shape[2]
    blocks, offsets = slots_of(block_ids, len(message[0]), page)
    for pages, rows in zip(stored(layer), message, strict=True):
        pages[blocks, :, offsets] = rows
"""
BY_PAGES = """
def slots_of(block_ids, num_tokens, page):
    blocks = torch.tensor(block_ids).repeat_interleave(page)[:num_tokens]
    return blocks, torch.arange(num_tokens).remainder(page)


def take_layer(layer, block_ids, num_tokens):
    return [pages[block_ids].transpose(1, 2).flatten(0, 1)[:num_tokens].clone() for pages in stored(layer)]


def put_layer(layer, block_ids, message):
    page = layer.k.shape[2]
    for pages, rows in zip(stored(layer), message, strict=True):
        for block, part in zip(block_ids, rows.split(page), strict=True):
            pages[block, :, : len(part)] = part.transpose(0, 1)
"""
TOKEN_BY_TOKEN = """
def slots_of(block_ids, num_tokens, page):
    return [block_ids[p // page] for p in range(num_tokens)], [p % page for p in range(num_tokens)]


def take_layer(layer, block_ids, num_tokens):
    slots = list(zip(*slots_of(block_ids, num_tokens, layer.k.shape[2])))
    return [torch.stack([pages[block, :, offset] for block, offset in slots]) for pages in stored(layer)]


def put_layer(layer, block_ids, message):
    slots = list(zip(*slots_of(block_ids, len(message[0]), layer.k.shape[2])))
    for pages, rows in zip(stored(layer), message):
        for (block, offset), row in zip(slots, rows):
            pages[block, :, offset] = row
"""

BANKS = {
    "5.18": Bank(
        wrong=(
            Wrong("the page number for the block", {1: "positions // page"}, ORDER),
            Wrong("the table by offset", {1: "torch.tensor(block_ids)[positions % len(block_ids)]"}, ORDER),
            Wrong("blocks sorted as in the pool", {1: "torch.tensor(sorted(block_ids))[positions // page]"}, ORDER),
            Wrong("the position for the offset", {2: "positions.clamp(max=page - 1)"}, ORDER),
            Wrong("whole pages", WHOLE_PAGES, ORDER),
            Wrong("no scales", {3: "[pages[blocks, :, offsets] for pages in (layer.k, layer.v)]"}, SCALES),
            Wrong("K twice", {3: "[layer.k[blocks, :, offsets] for pages in stored(layer)]"}, ORDER),
            Wrong("a view of a single page", A_VIEW, COPY),
            Wrong("written in the order of arrival", {4: "pages[blocks.sort().values, :, offsets] = rows"}, PLACE),
            Wrong("nothing is written", {4: "pages[blocks, :, offsets].copy_(rows)"}, PLACE),
            Wrong("clears the rest of the last page", PADS_THE_LAST_PAGE, OTHERS),
            Wrong("the page size of the sender", SIZE_REMEMBERED, SIZES),
        ),
        right=(
            Right("page by page", BY_PAGES),
            Right("token by token", TOKEN_BY_TOKEN),
            Right(
                "in place",
                {4: "pages.index_put_((blocks[:, None], torch.arange(pages.shape[1]), offsets[:, None]), rows)"},
            ),
        ),
    ),
}
