"""Answers that prove the check of exercise 3.1."""

from twophase_labs.machine.bank import right, wrong

ROW, EVERY, EMPTY = "gives one row of logits", "caches every token in every layer", "is right from an empty cache"
RIGHT_ROWS, EQUALS, TWICE = "caches the right keys and values", "equals recomputing", "computes nothing twice"
KNOWS_ONE, ALONE = "knows one text from another", "leaves the given cache alone"
GOES_ON = "goes on from one cache in two ways"

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
BUFFERS_WITH_ROOM_SHARED_BY_BRANCHES = """
ROOM = {}

def decode_step(model, new_ids, cache):
    n, x, grown = (cache[0][0].shape[1], model.embed(new_ids), [])
    positions = torch.arange(n, n + len(new_ids))
    for layer, (k, v) in enumerate(cache):
        q, new_k, new_v = model.project(layer, x, positions)
        pair = []
        for old, new in ((k, new_k), (v, new_v)):
            buffer = old._base if old._base is not None and n and (old._base.shape[1] >= n + len(new_ids)) else None
            if buffer is None:
                buffer = torch.empty(old.shape[0], max(4096, 2 * n), old.shape[2])
                buffer[:, :n] = old
            buffer[:, n:n + len(new_ids)] = new
            pair.append(buffer[:, :n + len(new_ids)])
        grown.append(tuple(pair))
        x = model.finish(layer, x, model.attend(q, *pair))
    return (model.logits(x[-1:])[0], grown)
"""
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
RECURSION_OVER_LAYERS = """
def decode_step(model, new_ids, cache):
    first = cache[0][0].shape[1]
    at = torch.tensor([first + i for i in range(len(new_ids))])

    def layers(layer, x):
        if layer == len(cache):
            return (x, [])
        q, k, v = model.project(layer, x, at)
        k, v = (torch.hstack([cache[layer][0], k]), torch.hstack([cache[layer][1], v]))
        x, rest = layers(layer + 1, model.finish(layer, x, model.attend(q, k, v)))
        return (x, [(k, v)] + rest)
    x, made = layers(0, model.embed(new_ids))
    return (model.logits(x[len(x) - 1:]).flatten(), made)
"""

# fmt: off
BANKS = {
    "3.1": (
        wrong("appends along the heads", ".cat([old_k, new_k], dim=1", ".cat([old_k, new_k], dim=0", by=ROW),
        wrong("appends nothing", "torch.cat([old_k, new_k], dim=1)", "new_k", "torch.cat([old_v, new_v], dim=1)",
              "new_v", by=EVERY),
        wrong("a row for every new token", "x[-1:]", "x", by=EMPTY),
        wrong("new before old", "[old_k, new_k", "[new_k, old_k", "[old_v, new_v", "[new_v, old_v", by=RIGHT_ROWS),
        wrong("attends to the new keys only", "model.attend(q, k, v)", "model.attend(q, new_k, new_v)", by=EQUALS),
        wrong("all rows, then the last", ALL_ROWS_THEN_THE_LAST, by=TWICE),
        wrong("the position from a counter on the model", "cache[0][0].shape[1]",
              "getattr(model, 'seen', 0) if cache[0][0].shape[1] else 0",
              "positions = torch.arange(num_cached, num_cached + len(new_ids))",
              "model.seen = num_cached + len(new_ids)\n    positions = torch.arange(num_cached, num_cached + len(new_ids))",
              "k = torch.cat([old_k, new_k], dim=1)\n        v = torch.cat([old_v, new_v], dim=1)",
              "k, v = (torch.cat([old_k, new_k], dim=1), torch.cat([old_v, new_v], dim=1))", by=KNOWS_ONE),
        wrong("writes into the cache it was given", APPENDS_IN_PLACE, by=ALONE),
        wrong("buffers with room, shared by branches", BUFFERS_WITH_ROOM_SHARED_BY_BRANCHES, by=GOES_ON),
        right("into tensors of the new size", ALLOCATES),
        right("recursion over layers", RECURSION_OVER_LAYERS),
    ),
}
