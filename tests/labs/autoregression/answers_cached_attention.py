"""Answers that prove the checks of exercises 1.5, 1.6 and 1.7."""

from twophase_labs.machine.bank import right, wrong

RETURNS_ONE, AVERAGES_THE, HIDES_THE = "returns one vector per query", "averages the values", "hides the future"
SEES_THE, SURVIVES_SCORES = "sees the past and itself", "survives scores of any size"
MATCHES_A, LEAVES_ITS = "matches a loop over queries", "leaves its inputs alone"
ANSWERS_FOR, CACHES_EVERY = "answers for the new tokens", "caches every token"
STARTS_FROM, PROJECTS_NEW = "starts from an empty cache", "projects new tokens only"
CACHES_THE, GIVES_THE = "caches the right keys and values", "gives the logits of one pass"
KNOWS_ONE, LEAVES_THE = "knows one text from another", "leaves the given cache alone"
CONTINUES_THE, WRITES_WHAT = "continues the prompt", "writes what recomputing writes"
READS_EACH, READS_THE = "reads each token once", "reads the prompt in one pass"
WRITES_AS, DOES_WHAT = "writes as many tokens as asked", "does what its examples say"
INPUT = "leaves the prompt alone"

SCALES_IN_PLACE = """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    q /= q.shape[-1] ** 0.5
    visible = torch.arange(S) <= torch.arange(S - L, S)[:, None]
    return (q @ k.mT).masked_fill(~visible, -torch.inf).softmax(-1) @ v
"""
SDPA = """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    visible = torch.ones(L, S, dtype=torch.bool).tril(S - L)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
"""
ADDITIVE_MASK_NO_MASK = """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    s = torch.bmm(q, k.transpose(-1, -2)) * q.size(-1) ** -0.5
    if L > 1:
        s = s + torch.full((L, S), -torch.inf, dtype=s.dtype).triu(S - L + 1)
    w = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))
    return torch.bmm(w, v)
"""
PROJECTS_TWICE = """
def step(toy, new_ids, cache):
    x = toy.embed(new_ids, cache[0].shape[1])
    q = toy.project(x)[0]
    k, v = (torch.cat([old, new], dim=1) for old, new in zip(cache, toy.project(x)[1:]))
    return toy.logits(x, attend(q, k, v)), (k, v)
"""
ATTENDS_TO_NEW_KEYS = """
def step(toy, new_ids, cache):
    x = toy.embed(new_ids, cache[0].shape[1])
    q, new_k, new_v = toy.project(x)
    k, v = torch.cat([cache[0], new_k], dim=1), torch.cat([cache[1], new_v], dim=1)
    return toy.logits(x, attend(q, new_k, new_v)), (k, v)
"""
WRITES_INTO_THE_CACHE = """
def step(toy, new_ids, cache):
    x = toy.embed(new_ids, cache[0].shape[1])
    q, new_k, new_v = toy.project(x)
    k, v = torch.cat([cache[0], new_k], dim=1), torch.cat([cache[1], new_v], dim=1)
    logits = toy.logits(x, attend(q, k, v))
    cache[0].zero_()
    return logits, (k, v)
"""
SDPA_INSTEAD_OF_ATTEND = """
def step(toy, new_ids, cache):
    x = toy.embed(new_ids, start=cache[0].shape[1])
    q, k, v = toy.project(x)
    k, v = torch.hstack([cache[0], k]), torch.hstack([cache[1], v])
    L, S = q.shape[1], k.shape[1]
    mask = torch.ones(L, S, dtype=torch.bool).tril(S - L)
    return toy.logits(x, torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)), [k, v]
"""
ALLOCATES = """
def step(toy, new_ids, cache):
    batch, num_new = new_ids.shape
    num_cached = cache[0].shape[1]
    x = toy.embed(new_ids, num_cached)
    q, *new = toy.project(x)
    grown = []
    for old, latest in zip(cache, new):
        both = torch.empty(batch, num_cached + num_new, old.shape[2])
        both[:, :num_cached], both[:, num_cached:] = old, latest
        grown.append(both)
    return toy.logits(x, attend(q, *grown)), tuple(grown)
"""
PROMPT_TOKEN_BY_TOKEN = """
def generate(step, cache, prompt, num_new):
    ids = prompt.clone()
    for at in range(prompt.shape[1] + num_new - 1 if num_new else 0):
        logits, cache = step(ids[:, at : at + 1], cache)
        if at >= prompt.shape[1] - 1:
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    return ids
"""
LOOKS_INTO_THE_CACHE = """
def generate(step, cache, prompt, num_new):
    ids = prompt
    for _ in range(num_new):
        logits, cache = step(ids[:, cache.shape[1] :], cache)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    return ids
"""
WRITES_INTO_THE_PROMPT = """
def generate(step, cache, prompt, num_new):
    ids = new = prompt
    empty = cache
    for _ in range(num_new):
        logits, cache = step(new, cache)
        new = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, new], dim=1)
        prompt[:, -1] = new[:, 0]
    return ids
"""
A_LIST = """
def generate(step, cache, prompt, num_new):
    pieces = [prompt]
    while len(pieces) <= num_new:
        logits, cache = step(pieces[-1], cache)
        pieces.append(logits[:, -1].argmax(-1)[:, None])
    return torch.cat(pieces, dim=1)
"""
RECURSION = """
def generate(step, cache, prompt, num_new):
    def go(ids, unread, cache, left):
        if not left:
            return ids
        logits, cache = step(unread, cache)
        best = logits[:, -1, :].topk(1, -1).indices
        return go(torch.hstack([ids, best]), best, cache, left - 1)
    return go(prompt, prompt, cache, num_new)
"""

# fmt: off
BANKS = {
    "1.5": (
        wrong("two sequences only", "weights @ v", "(weights @ v).reshape(2, -1, v.shape[-1])", by=RETURNS_ONE),
        wrong("no softmax", {4: "scores"}, by=AVERAGES_THE),
        wrong("no mask", {3: "scores"}, by=HIDES_THE),
        wrong("queries at the first positions", {2: "torch.arange(L)"}, by=SEES_THE),
        wrong("mask of -50 instead of minus infinity", "torch.inf", "50.0", by=SURVIVES_SCORES),
        wrong("no scale", {1: "q @ k.mT"}, by=MATCHES_A),
        wrong("always eight features", "q.shape[-1]", "8", by=MATCHES_A),
        wrong("scales its input", SCALES_IN_PLACE, by=LEAVES_ITS),
        right("torch's own attention", SDPA),
        right("additive mask, no mask for one", ADDITIVE_MASK_NO_MASK),
    ),
    "1.6": (
        wrong("appends along the batch", {3: "torch.cat([old_k, new_k], dim=0)"}, by=ANSWERS_FOR),
        wrong("appends nothing", {3: "new_k", 4: "new_v"}, by=CACHES_EVERY),
        wrong("does not attend at all", {5: "new_v"}, by=STARTS_FROM),
        wrong("projects twice", PROJECTS_TWICE, by=PROJECTS_NEW),
        wrong("always position 0", {1: "0"}, by=CACHES_THE),
        wrong("attends to the new keys only", ATTENDS_TO_NEW_KEYS, by=GIVES_THE),
        wrong("position from the model's counter", "x = toy.embed(new_ids, old_k.shape[1]",
              "start = toy.num_projected // new_ids.shape[0]\n    x = toy.embed(new_ids, start",
              "k = torch.cat([old_k, new_k], dim=1)\n    v = torch.cat([old_v, new_v], dim=1)",
              "k, v = (torch.cat([old_k, new_k], dim=1), torch.cat([old_v, new_v], dim=1))", by=KNOWS_ONE),
        wrong("writes into the cache it was given", WRITES_INTO_THE_CACHE, by=LEAVES_THE),
        right("sdpa instead of attend, list", SDPA_INSTEAD_OF_ATTEND),
        right("into tensors of the new size", ALLOCATES),
    ),
    "1.7": (
        wrong("chooses from every row", "ids = unread = prompt", "ids = new = prompt", "for _ in",
              "empty = cache\n    for _ in", "step(unread, cache)", "step(new, cache)", "unread = logits[:, -1:]",
              "new = logits", "[ids, unread]", "[ids, new]", by=CONTINUES_THE),
        wrong("chooses from the first row", "ids = unread = prompt", "ids = new = prompt", "for _ in",
              "empty = cache\n    for _ in", "step(unread, cache)", "step(new, cache)", "unread = logits[:, -1:",
              "new = logits[:, :1", "[ids, unread]", "[ids, new]", by=WRITES_WHAT),
        wrong("recomputes, without the cache", "ids = unread = prompt", "ids = new = prompt", "for _ in",
              "empty = cache\n    for _ in", "cache = step(unread, cache)", "_ = step(ids, cache)",
              "unread = logits[:, -1:].argmax(-1)", "new = logits[:, -1:].argmax(-1)", "[ids, unread]", "[ids, new]",
              by=READS_EACH),
        wrong("the prompt a token at a time", PROMPT_TOKEN_BY_TOKEN, by=READS_THE),
        wrong("end at token 0", "ids = torch.cat([ids, unread], dim=1)",
              "ids = torch.cat([ids, unread], 1)\n        if (unread == 0).all():\n            break", by=WRITES_AS),
        wrong("looks into the cache", LOOKS_INTO_THE_CACHE, by=DOES_WHAT),
        wrong("writes into the prompt", WRITES_INTO_THE_PROMPT, by=INPUT),
        right("a list of pieces", A_LIST),
        right("recursion", RECURSION),
    ),
}
