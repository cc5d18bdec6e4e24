"""Answers that prove the checks of exercises 1.5 to 1.7."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

RETURNS_NOTHING = """
def attend(q, k, v):
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    weights @ v
"""
SDPA = """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    visible = torch.ones(L, S, dtype=torch.bool).tril(S - L)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
"""
ADDED_MASK = """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    scores = torch.einsum("bld,bsd->bls", q, k) * q.shape[2] ** -0.5
    scores = scores + torch.full((L, S), -torch.inf).triu(S - L + 1)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.einsum("bls,bsd->bld", weights / weights.sum(-1, keepdim=True), v)
"""
SCALES_IN_PLACE = """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    q /= q.shape[-1] ** 0.5
    visible = torch.arange(S) <= torch.arange(S - L, S)[:, None]
    return (q @ k.mT).masked_fill(~visible, -torch.inf).softmax(-1) @ v
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
TOKEN_BY_TOKEN = """
def step(toy, new_ids, cache):
    k, v = cache
    rows = []
    for at in range(new_ids.shape[1]):
        x = toy.embed(new_ids[:, at : at + 1], k.shape[1])
        q, new_k, new_v = toy.project(x)
        k, v = torch.cat([k, new_k], dim=1), torch.cat([v, new_v], dim=1)
        rows.append(toy.logits(x, attend(q, k, v)))
    return torch.cat(rows, dim=1), (k, v)
"""
PROJECTS_TWICE = """
def step(toy, new_ids, cache):
    x = toy.embed(new_ids, cache[0].shape[1])
    q = toy.project(x)[0]
    k, v = (torch.cat([old, new], dim=1) for old, new in zip(cache, toy.project(x)[1:]))
    return toy.logits(x, attend(q, k, v)), (k, v)
"""
LOGITS_ONLY = """
def step(toy, new_ids, cache):
    x = toy.embed(new_ids, cache[0].shape[1])
    q, new_k, new_v = toy.project(x)
    k, v = torch.cat([cache[0], new_k], dim=1), torch.cat([cache[1], new_v], dim=1)
    return toy.logits(x, attend(q, k, v))
"""
KEYS_ONLY = """
def step(toy, new_ids, cache):
    x = toy.embed(new_ids, cache[0].shape[1])
    q, new_k, new_v = toy.project(x)
    k = torch.cat([cache[0], new_k], dim=1)
    v = new_v
    return toy.logits(x, attend(q, k[:, -v.shape[1]:], v)), (k, v)
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


def generating(
    read: str = "new",
    choose: str = "logits[:, -1:].argmax(-1)",
    append: str = "torch.cat([ids, new], dim=1)",
    kept: str = "cache",
    passes: str = "range(num_new)",
    after: str = "",
) -> str:
    """A whole answer to 1.7 with one of its expressions replaced."""
    return f"""
def generate(step, cache, prompt, num_new):
    ids = new = prompt
    empty = cache
    for _ in {passes}:
        logits, {kept} = step({read}, cache)
        new = {choose}
        ids = {append}
        {after}
    return ids
"""


KEEPS_ITS_CACHE = """
_kept = []
def generate(step, cache, prompt, num_new):
    if not _kept:
        _kept.append(cache)
    ids = new = prompt
    for _ in range(num_new):
        logits, _kept[0] = step(new, _kept[0])
        new = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, new], dim=1)
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
RETURNS_NOTHING_NEW = """
def generate(step, cache, prompt, num_new):
    ids = new = prompt
    for _ in range(num_new):
        logits, cache = step(new, cache)
        new = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, new], dim=1)
    return ids[:, prompt.shape[1]:]
"""
A_LIST = """
def generate(step, cache, prompt, num_new):
    pieces = [prompt]
    while len(pieces) <= num_new:
        logits, cache = step(pieces[-1], cache)
        pieces.append(logits[:, -1].argmax(-1)[:, None])
    return torch.cat(pieces, dim=1)
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
INTO_ONE_TENSOR = """
def generate(step, cache, prompt, num_new):
    batch, length = prompt.shape
    ids = torch.zeros(batch, length + num_new, dtype=prompt.dtype)
    ids[:, :length] = prompt
    read = 0
    for at in range(length, length + num_new):
        logits, cache = step(ids[:, read:at], cache)
        ids[:, at] = logits[:, -1].argmax(dim=-1)
        read = at
    return ids
"""
READS_THE_LAST_TOKEN_TOO = """
def generate(step, cache, prompt, num_new):
    if num_new == 0:
        return prompt
    ids = prompt
    logits, cache = step(prompt, cache)
    for _ in range(num_new):
        new = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
        logits, cache = step(new, cache)
    return ids
"""

BANKS = {
    "1.5": Bank(
        wrong=(
            Wrong("returns nothing", RETURNS_NOTHING, "returns one vector per query"),
            Wrong("softmax over the queries", {4: "scores.softmax(1)"}, "averages the values"),
            Wrong("no softmax", {4: "scores"}, "averages the values"),
            Wrong("zero instead of minus infinity", {3: "scores.masked_fill(~visible, 0)"}, "hides the future"),
            Wrong("hides after the softmax", {3: "scores", 4: "scores.softmax(-1) * visible"}, "averages the values"),
            Wrong("no mask", {3: "scores"}, "hides the future"),
            Wrong("the mask upside down", {3: "scores.masked_fill(visible, -torch.inf)"}, "averages the values"),
            Wrong("queries at the first positions", {2: "torch.arange(L)"}, "sees the past and itself"),
            Wrong("queries one position late", {2: "torch.arange(S - L + 1, S + 1)"}, "hides the future"),
            Wrong("not itself", {2: "torch.arange(S - L - 1, S - 1)"}, "averages the values"),
            Wrong("no scale", {1: "q @ k.mT"}, "matches a loop over queries"),
            Wrong("divided by the width", {1: "q @ k.mT / q.shape[-1]"}, "matches a loop over queries"),
            Wrong("scales its input", SCALES_IN_PLACE, "leaves its inputs alone"),
        ),
        right=(
            Right("torch's own attention", SDPA),
            Right("an added mask, softmax by hand", ADDED_MASK),
            Right("positions by counting on", {2: "S - L + torch.arange(L)"}),
        ),
    ),
    "1.6": Bank(
        wrong=(
            Wrong("appends nothing", {3: "new_k", 4: "new_v"}, "caches every token"),
            Wrong("appends keys only", KEYS_ONLY, "caches every token"),
            Wrong("returns the logits only", LOGITS_ONLY, "answers for the new tokens"),
            Wrong("appends along the batch", {3: "torch.cat([old_k, new_k], dim=0)"}, "answers for the new tokens"),
            Wrong("always position 0", {1: "0"}, "caches the right keys and values"),
            Wrong("one position late", {1: "old_k.shape[1] + 1"}, "starts from an empty cache"),
            Wrong("the batch as position", {1: "old_k.shape[0]"}, "starts from an empty cache"),
            Wrong(
                "new before old",
                {3: "torch.cat([new_k, old_k], dim=1)", 4: "torch.cat([new_v, old_v], dim=1)"},
                "caches the right keys and values",
            ),
            Wrong("values among the keys", {3: "torch.cat([old_v, new_v], dim=1)"}, "starts from an empty cache"),
            Wrong("projects twice", PROJECTS_TWICE, "projects new tokens only"),
            Wrong("attends to the new keys only", ATTENDS_TO_NEW_KEYS, "gives the logits of one pass"),
            Wrong("does not attend at all", {5: "new_v"}, "starts from an empty cache"),
            Wrong("writes into the cache it was given", WRITES_INTO_THE_CACHE, "leaves the given cache alone"),
        ),
        right=(
            Right("into tensors of the new size", ALLOCATES),
            Right("a token at a time", TOKEN_BY_TOKEN),
            Right("counts on the values", {1: "old_v.size(1)"}),
        ),
    ),
    "1.7": Bank(
        wrong=(
            Wrong("feeds everything again", generating(read="ids"), "writes what recomputing writes"),
            Wrong("feeds the prompt in every pass", generating(read="prompt"), "writes what recomputing writes"),
            Wrong(
                "feeds only the prompt's last token", generating(read="ids[:, -1:]"), "writes what recomputing writes"
            ),
            Wrong("chooses from every row", generating(choose="logits.argmax(-1)"), "continues the prompt"),
            Wrong(
                "chooses from the first row",
                generating(choose="logits[:, :1].argmax(-1)"),
                "writes what recomputing writes",
            ),
            Wrong("the least likely", generating(choose="logits[:, -1:].argmin(-1)"), "writes what recomputing writes"),
            Wrong("keeps only the new tokens", generating(append="new"), "continues the prompt"),
            Wrong("leaves the prompt out", RETURNS_NOTHING_NEW, "continues the prompt"),
            Wrong("forgets the cache", generating(kept="_"), "writes what recomputing writes"),
            Wrong("recomputes, without the cache", generating(read="ids", kept="_"), "reads each token once"),
            Wrong("one token at least", generating(passes="range(max(1, num_new))"), "continues the prompt"),
            Wrong("at most 32 tokens", generating(passes="range(min(32, num_new))"), "writes as many tokens as asked"),
            Wrong(
                "stops when all texts repeat themselves",
                generating(after="if ids.shape[1] > 24 and bool((ids[:, -1] == ids[:, -2]).all()): break"),
                "writes as many tokens as asked",
            ),
            Wrong("the prompt a token at a time", PROMPT_TOKEN_BY_TOKEN, "reads the prompt in one pass"),
            Wrong("looks into the cache", LOOKS_INTO_THE_CACHE, "does what its examples say"),
            Wrong("a cache of its own", KEEPS_ITS_CACHE, "writes what recomputing writes"),
            Wrong("writes into the prompt", generating(after="prompt[:, -1] = new[:, 0]"), "leaves the prompt alone"),
        ),
        right=(
            Right("a list of pieces", A_LIST),
            Right("into one tensor of the final size", INTO_ONE_TENSOR),
            Right("reads the last token too", READS_THE_LAST_TOKEN_TOO),
            Right("argmax with its axis kept", generating(choose="logits[:, -1].argmax(-1, keepdim=True)")),
        ),
    ),
}
