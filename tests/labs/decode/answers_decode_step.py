"""Answers that prove the check of exercise 3.1."""

from tests.labs.decode.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

ALLOCATES = """
def decode_step(model, new_ids, cache):
    num_cached, num_new = cache[0][0].shape[1], len(new_ids)
    x, grown = model.embed(new_ids), []
    for layer in range(model.num_layers):
        q, *new = model.project(layer, x, num_cached + torch.arange(num_new))
        both = [torch.empty(n.shape[0], num_cached + num_new, n.shape[2]) for n in new]
        for part, old, latest in zip(both, cache[layer], new):
            part[:, :num_cached], part[:, num_cached:] = old, latest
        grown.append(tuple(both))
        x = model.finish(layer, x, model.attend(q, *both))
    return model.logits(x[-1]), grown
"""
TOKEN_BY_TOKEN = """
def decode_step(model, new_ids, cache):
    for at in range(len(new_ids)):
        x, grown = model.embed(new_ids[at : at + 1]), []
        position = torch.tensor([cache[0][0].shape[1]])
        for layer, (old_k, old_v) in enumerate(cache):
            q, k, v = model.project(layer, x, position)
            k, v = torch.cat((old_k, k), 1), torch.cat((old_v, v), 1)
            x = model.finish(layer, x, model.attend(q, k, v))
            grown.append((k, v))
        cache = grown
    return model.logits(x)[0], cache
"""
APPENDS_IN_PLACE = """
def decode_step(model, new_ids, cache):
    num_cached = cache[0][0].shape[1]
    positions = torch.arange(num_cached, num_cached + len(new_ids))
    x = model.embed(new_ids)
    for layer in range(model.num_layers):
        q, new_k, new_v = model.project(layer, x, positions)
        k, v = torch.cat([cache[layer][0], new_k], dim=1), torch.cat([cache[layer][1], new_v], dim=1)
        cache[layer] = (k, v)
        x = model.finish(layer, x, model.attend(q, k, v))
    return model.logits(x[-1:])[0], cache
"""
LOGITS_ONLY = """
def decode_step(model, new_ids, cache):
    x = model.embed(new_ids)
    for layer, (old_k, old_v) in enumerate(cache):
        q, k, v = model.project(layer, x, torch.arange(len(new_ids)))
        x = model.finish(layer, x, model.attend(q, k, v))
    return model.logits(x[-1:])[0]
"""
FIRST_LAYER_ONLY = """
def decode_step(model, new_ids, cache):
    num_cached = cache[0][0].shape[1]
    x, grown = model.embed(new_ids), list(cache)
    for layer, (old_k, old_v) in enumerate(cache):
        q, k, v = model.project(layer, x, torch.arange(num_cached, num_cached + len(new_ids)))
        k, v = torch.cat([old_k, k], dim=1), torch.cat([old_v, v], dim=1)
        if layer == 0:
            grown[0] = (k, v)
        x = model.finish(layer, x, model.attend(q, k, v))
    return model.logits(x[-1:])[0], grown
"""
ALL_ROWS_THEN_THE_LAST = """
def decode_step(model, new_ids, cache):
    num_cached = cache[0][0].shape[1]
    x, grown = model.embed(new_ids), []
    for layer, (old_k, old_v) in enumerate(cache):
        q, k, v = model.project(layer, x, torch.arange(num_cached, num_cached + len(new_ids)))
        k, v = torch.cat([old_k, k], dim=1), torch.cat([old_v, v], dim=1)
        grown.append((k, v))
        x = model.finish(layer, x, model.attend(q, k, v))
    return model.logits(x)[-1], grown
"""
PROJECTS_TWICE = """
def decode_step(model, new_ids, cache):
    num_cached = cache[0][0].shape[1]
    positions = torch.arange(num_cached, num_cached + len(new_ids))
    x, grown = model.embed(new_ids), []
    for layer, (old_k, old_v) in enumerate(cache):
        k = torch.cat([old_k, model.project(layer, x, positions)[1]], dim=1)
        v = torch.cat([old_v, model.project(layer, x, positions)[2]], dim=1)
        grown.append((k, v))
        x = model.finish(layer, x, model.attend(model.project(layer, x, positions)[0], k, v))
    return model.logits(x[-1:])[0], grown
"""

ROW, EVERY, EMPTY, RIGHT_ROWS, EQUALS, TWICE, ALONE = (
    "gives one row of logits",
    "caches every token in every layer",
    "is right from an empty cache",
    "caches the right keys and values",
    "equals recomputing",
    "computes nothing twice",
    "leaves the given cache alone",
)

BANKS = {
    "3.1": Bank(
        wrong=(
            Wrong("returns the logits only", LOGITS_ONLY, ROW),
            Wrong("a row for every new token", {5: "x"}, EMPTY),
            Wrong("the first row", {5: "x[:1]"}, EMPTY),
            Wrong("all rows, then the last", ALL_ROWS_THEN_THE_LAST, TWICE),
            Wrong("keeps the first layer only", FIRST_LAYER_ONLY, EVERY),
            Wrong("appends nothing", {2: "new_k", 3: "new_v"}, EVERY),
            Wrong("appends along the heads", {2: "torch.cat([old_k, new_k], dim=0)"}, ROW),
            Wrong("always position 0", {1: "torch.arange(len(new_ids))"}, RIGHT_ROWS),
            Wrong("one position late", {1: "torch.arange(num_cached + 1, num_cached + 1 + len(new_ids))"}, RIGHT_ROWS),
            Wrong(
                "new before old",
                {2: "torch.cat([new_k, old_k], dim=1)", 3: "torch.cat([new_v, old_v], dim=1)"},
                RIGHT_ROWS,
            ),
            Wrong("keys among the values", {3: "torch.cat([old_k, new_k], dim=1)"}, EMPTY),
            Wrong("attends to the new keys only", {4: "model.attend(q, new_k, new_v)"}, EQUALS),
            Wrong("no attention: the queries themselves", {4: "q"}, EMPTY),
            Wrong("projects three times", PROJECTS_TWICE, TWICE),
            Wrong("writes into the cache it was given", APPENDS_IN_PLACE, ALONE),
        ),
        right=(
            Right("into tensors of the new size", ALLOCATES),
            Right("a token at a time", TOKEN_BY_TOKEN),
            Right("positions by counting on", {1: "num_cached + torch.arange(len(new_ids))"}),
        ),
    ),
}
BANKS = opened_all(BANKS)
