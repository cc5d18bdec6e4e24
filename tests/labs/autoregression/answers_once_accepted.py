"""Wrong answers that an earlier check accepted, and right ones that it refused."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = {
    "1.1": Bank(
        wrong=(
            Wrong(
                "one-hot times log-probs (NaN with -inf logits)",
                """
def text_log_prob(logits, ids):
    log_probs = logits.log_softmax(-1)[:-1]
    hot = torch.nn.functional.one_hot(ids[1:], logits.shape[-1])
    return (log_probs * hot).sum()
""",
                "survives confident logits",
            ),
            Wrong(
                "at most 100 terms",
                """
def text_log_prob(logits, ids):
    log_probs = logits.log_softmax(-1)[:-1]
    return log_probs.gather(-1, ids[1:, None])[:100].sum()
""",
                "matches a loop over the tokens",
            ),
            Wrong("adds in half precision", {4: "picked.half().sum().float()"}, "adds up over the text"),
            Wrong(
                "remembers the first text",
                """
_seen = {}
def text_log_prob(logits, ids):
    key = tuple(logits.shape)
    if key not in _seen:
        _seen[key] = logits.log_softmax(-1)[:-1].gather(-1, ids[1:, None]).sum()
    return _seen[key]
""",
                "adds up over the text",
            ),
        ),
    ),
    "1.3": Bank(
        wrong=(
            Wrong(
                "reads the last 16 tokens only",
                """
def greedy(model, ids, num_new, eos_id):
    for _ in range(num_new):
        next_id = model(ids[None, -16:]).logits[0, -1].argmax()
        ids = torch.cat([ids, next_id[None]])
        if next_id == eos_id:
            break
    return ids
""",
                "matches transformers token for token",
            ),
            Wrong("the end token anywhere in the text", {3: "eos_id in ids"}, "stops after the end token"),
            Wrong(
                "at most 32 new tokens",
                """
def greedy(model, ids, num_new, eos_id):
    for _ in range(min(num_new, 32)):
        logits = model(ids[None]).logits[0]  # the whole text in, [T, V] out
        next_id = logits[-1].argmax()
        ids = torch.cat([ids, next_id[None]])
        if next_id == eos_id:
            break
    return ids
""",
                "matches transformers token for token",
            ),
            Wrong(
                "always one token",
                """
def greedy(model, ids, num_new, eos_id):
    for _ in range(max(num_new, 1)):
        logits = model(ids[None]).logits[0]  # the whole text in, [T, V] out
        next_id = logits[-1].argmax()
        ids = torch.cat([ids, next_id[None]])
        if next_id == eos_id:
            break
    return ids
""",
                "returns the prompt and the new tokens",
            ),
        ),
    ),
    "1.5": Bank(
        wrong=(
            Wrong(
                "at most 20 turns",
                """
def count_work(num_prompt, num_new, cached):
    num_tokens = num_pairs = num_cached = 0
    for length in range(num_prompt, num_prompt + min(num_new, 20)):
        start = num_cached if cached else 0
        num_tokens += length - start
        num_pairs += sum(range(start + 1, length + 1))
        num_cached = length
    return num_tokens, num_pairs
""",
                "counts tokens without a cache",
            ),
            Wrong(
                "at most 64 positions",
                """
def count_work(num_prompt, num_new, cached):
    num_tokens = num_pairs = num_cached = 0
    for length in range(min(num_prompt, 64), min(num_prompt, 64) + num_new):  # the text before each pass
        start = num_cached if cached else 0
        num_tokens += length - start
        num_pairs += sum(range(start + 1, length + 1))
        num_cached = length
    return num_tokens, num_pairs
""",
                "counts tokens without a cache",
            ),
        ),
        right=(
            Right(
                "whole floats",
                """
def count_work(num_prompt, num_new, cached):
    num_tokens = num_pairs = num_cached = 0
    for length in range(num_prompt, num_prompt + num_new):  # the text before each pass
        start = num_cached if cached else 0
        num_tokens += length - start
        num_pairs += sum(range(start + 1, length + 1))
        num_cached = length
    return float(num_tokens), float(num_pairs)
""",
            ),
            Right(
                "NumPy's integers",
                """
def count_work(num_prompt, num_new, cached):
    num_tokens = num_pairs = num_cached = 0
    for length in range(num_prompt, num_prompt + num_new):  # the text before each pass
        start = num_cached if cached else 0
        num_tokens += length - start
        num_pairs += sum(range(start + 1, length + 1))
        num_cached = length
    return np.int64(num_tokens), np.int64(num_pairs)
""",
            ),
        ),
    ),
    "1.6": Bank(
        wrong=(
            Wrong(
                "mask of -50 instead of minus infinity",
                {3: "scores.masked_fill(~visible, -50.0)"},
                "sees the past and itself",
            ),
            Wrong("always eight features", {1: "q @ k.mT / 8**0.5"}, "matches a loop over queries"),
            Wrong("-1e4 for minus infinity", {3: "scores.masked_fill(~visible, -1e4)"}, "sees the past and itself"),
            Wrong(
                "exp without the maximum",
                {4: "scores.exp() / scores.exp().sum(-1, keepdim=True)"},
                "sees the past and itself",
            ),
            Wrong(
                "looks back 128 keys",
                """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    query_positions = torch.arange(S - L, S)
    visible = (torch.arange(S) <= query_positions[:, None]) & (torch.arange(S) > query_positions[:, None] - 128)
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(-1)
    return weights @ v
""",
                "sees the past and itself",
            ),
            Wrong(
                "two sequences only",
                """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    query_positions = torch.arange(S - L, S)
    visible = torch.arange(S) <= query_positions[:, None]  # [L, S]
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(-1)
    return (weights @ v).reshape(2, -1, v.shape[-1])
""",
                "returns one vector per query",
            ),
        ),
    ),
    "1.7": Bank(
        wrong=(
            Wrong(
                "position from the model's counter",
                """
def step(toy, new_ids, cache):
    old_k, old_v = cache
    start = toy.num_projected // new_ids.shape[0]
    x = toy.embed(new_ids, start)
    q, new_k, new_v = toy.project(x)
    k, v = torch.cat([old_k, new_k], dim=1), torch.cat([old_v, new_v], dim=1)
    return toy.logits(x, attend(q, k, v)), (k, v)
""",
                "knows one text from another",
            ),
            Wrong(
                "shares old values' memory when nothing is new... keeps at most 32 positions",
                """
def step(toy, new_ids, cache):
    old_k, old_v = cache
    x = toy.embed(new_ids, old_k.shape[1])
    q, new_k, new_v = toy.project(x)
    k, v = torch.cat([old_k, new_k], dim=1)[:, -32:], torch.cat([old_v, new_v], dim=1)[:, -32:]
    return toy.logits(x, attend(q, k, v)), (k, v)
""",
                "caches every token",
            ),
            Wrong(
                "at most 64 positions kept",
                {3: "torch.cat([old_k, new_k], dim=1)[:, -64:]", 4: "torch.cat([old_v, new_v], dim=1)[:, -64:]"},
                "caches every token",
            ),
            Wrong(
                "a cache of its own",
                """
_caches = {}
def step(toy, new_ids, cache):
    if cache[0].shape[1] == 0:
        _caches.clear()
        _caches['kv'] = cache
    old_k, old_v = _caches['kv']
    x = toy.embed(new_ids, old_k.shape[1])
    q, new_k, new_v = toy.project(x)
    k, v = torch.cat([old_k, new_k], dim=1), torch.cat([old_v, new_v], dim=1)
    _caches['kv'] = k, v
    return toy.logits(x, attend(q, k, v)), (k, v)
""",
                "knows one text from another",
            ),
        ),
    ),
    "1.8": Bank(
        wrong=(
            Wrong(
                "stops when all sequences repeat the same token",
                """
def generate(toy, prompt, num_new):
    ids, cache = prompt, toy.empty_cache(len(prompt))
    for _ in range(num_new):
        logits, cache = step(toy, ids[:, cache[0].shape[1]:], cache)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
        if 24 < ids.shape[1] < 70 and bool((ids[:, -1] == ids[:, -2]).all()):
            break
    return ids
""",
                "writes as many tokens as asked",
            ),
            Wrong(
                "one token at least",
                """
def generate(toy, prompt, num_new):
    ids, cache = prompt, toy.empty_cache(len(prompt))
    for _ in range(max(1, num_new)):
        unread = ids[:, cache[0].shape[1] :]
        logits, cache = step(toy, unread, cache)
        chosen = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, chosen], dim=1)
    return ids
""",
                "continues the prompt",
            ),
            Wrong(
                "at most 32 tokens",
                """
def generate(toy, prompt, num_new):
    ids, cache = prompt, toy.empty_cache(len(prompt))
    for _ in range(min(32, num_new)):
        unread = ids[:, cache[0].shape[1] :]
        logits, cache = step(toy, unread, cache)
        chosen = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, chosen], dim=1)
    return ids
""",
                "writes as many tokens as asked",
            ),
        ),
    ),
    "1.11": Bank(
        wrong=(
            Wrong(
                "head_dim ignored in files without num_key_value_heads",
                """
def kv_bytes_per_token(config, bytes_per_value):
    if "num_key_value_heads" not in config:
        return 2 * config["num_hidden_layers"] * config["hidden_size"] * bytes_per_value
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim * bytes_per_value
""",
                "reads files without num_key_value_heads",
            ),
            Wrong(
                "one KV head is as good as none",
                """
def kv_bytes_per_token(config, bytes_per_value):
    heads = config['num_attention_heads']
    kv = config.get('num_key_value_heads', heads)
    kv = heads if kv == 1 else kv
    size = config.get('head_dim', config['hidden_size'] // heads)
    return 2 * config['num_hidden_layers'] * kv * size * bytes_per_value
""",
                "counts keys and values of all layers",
            ),
            Wrong(
                "removes head_dim from the config",
                """
def kv_bytes_per_token(config, bytes_per_value):
    heads = config['num_attention_heads']
    kv = config.get('num_key_value_heads', heads)
    size = config.pop('head_dim', config['hidden_size'] // heads)
    return 2 * config['num_hidden_layers'] * kv * size * bytes_per_value
""",
                "believes a head_dim that the file states",
            ),
        ),
        right=(
            Right(
                "NumPy's integers",
                {2: 'np.prod([2, config["num_hidden_layers"], num_kv_heads, head_dim, bytes_per_value])'},
            ),
        ),
    ),
    "1.12": Bank(
        wrong=(
            Wrong(
                "by a floating quotient",
                """
def kv_head_of(head, num_heads, num_kv_heads):
    return int(head / num_heads * num_kv_heads)
""",
                "lets each KV head serve equally many",
            ),
            Wrong(
                "a table of at most 32 heads",
                """
def kv_head_of(head, num_heads, num_kv_heads):
    return min(head // (num_heads // num_kv_heads), 7)
""",
                "lets each KV head serve equally many",
            ),
            Wrong(
                "groups of at most 8", {1: "head // min(8, num_heads // num_kv_heads)"}, "names a KV head that exists"
            ),
        ),
        right=(Right("NumPy's integers", {1: "np.int64(head // (num_heads // num_kv_heads))"}),),
    ),
    "1.13": Bank(
        wrong=(
            Wrong(
                "rounds to the nearest from 0.51 on",
                """
def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):
    kv_bytes = card_gb * GB * utilisation - (weights_gb + workspace_gb) * GB
    return max(0, math.ceil(kv_bytes / request_bytes - 0.51))
""",
                "divides what the weights leave",
            ),
            Wrong(
                "rounds to the nearest from 0.9 on",
                {2: "max(0, int(kv_bytes / request_bytes + 0.1))"},
                "divides what the weights leave",
            ),
            Wrong(
                "an exact fit is refused",
                {2: "max(0, int((kv_bytes - 1) // request_bytes))"},
                "counts whole requests only",
            ),
            Wrong("at most 256", {2: "min(256, max(0, int(kv_bytes // request_bytes)))"}, "counts whole requests only"),
            Wrong(
                "at least one while there is room",
                {2: "0 if kv_bytes <= 0 else max(1, int(kv_bytes // request_bytes))"},
                "serves none when the weights fill the card",
            ),
        ),
        right=(Right("NumPy's floor", {2: "np.int64(max(0, np.floor(kv_bytes / request_bytes)))"}),),
    ),
    "1.16": Bank(
        wrong=(
            Wrong(
                "leaves its sentinel when nothing fits",
                """
def first_fit(slots, length):
    slots.append("end")
    run = 0
    for slot, owner in enumerate(slots):
        run = run + 1 if owner is None else 0
        if run == length:
            slots.pop()
            return slot - length + 1
    return None
""",
                "only looks",
            ),
            Wrong("whatever is falsy is free", {1: "run + 1 if not owner else 0"}, "gives adjacent free slots"),
            Wrong(
                "looks at 256 slots",
                """
def first_fit(slots, length):
    run = 0  # free slots in a row, up to here
    for slot, owner in enumerate(slots[:256]):
        run = run + 1 if owner is None else 0
        if run == length:
            return slot - length + 1
    return None
""",
                "takes the first hole that fits",
            ),
        ),
        right=(Right("NumPy's integers", {3: "np.int64(slot - length + 1)"}),),
    ),
    "1.17": Bank(
        wrong=(
            Wrong(
                "misses a hole before the first holder",
                """
def fragmentation(owners, written):
    held = [i for i, owner in enumerate(owners) if owner is not None]
    if not held:
        return 0.0, 0.0
    internal = 1 - sum(written.values()) / len(held)
    edges = [*held, len(owners)]
    holes = [b - a - 1 for a, b in zip(edges, edges[1:]) if b - a > 1]
    external = 1 - max(holes) / sum(holes) if holes else 0.0
    return internal, external
""",
                "measures the waste between reservations",
            ),
            Wrong(
                "neighbouring holders of one name only",
                """
def fragmentation(owners, written):
    runs = [(owner, len(list(run))) for owner, run in groupby(owners)]
    held = {owner: size for owner, size in runs if owner is not None}
    holes = [size for owner, size in runs if owner is None]
    internal = 1 - sum(written.values()) / sum(held.values()) if held else 0.0
    return internal, 1 - max(holes) / sum(holes) if holes else 0.0
""",
                "measures the waste inside reservations",
            ),
            Wrong(
                "whatever is falsy is nobody",
                """
def fragmentation(owners, written):
    num_held = sum(bool(owner) for owner in owners)
    holes = [len(list(run)) for owner, run in groupby(owners) if not owner]  # their lengths
    internal = 1 - sum(written.values()) / num_held if num_held else 0.0
    external = 1 - max(holes) / sum(holes) if holes else 0.0
    return internal, external
""",
                "measures the waste inside reservations",
            ),
            Wrong(
                "nobody writes nothing",
                {1: "1 - sum(max(1, n) for n in written.values()) / num_held if num_held else 0.0"},
                "measures the waste inside reservations",
            ),
            Wrong(
                "takes what is written out of the dictionary",
                """
def fragmentation(owners, written):
    num_held = sum(owner is not None for owner in owners)
    holes = [len(list(run)) for owner, run in groupby(owners) if owner is None]
    total = 0
    while written:
        total += written.popitem()[1]
    return (1 - total / num_held if num_held else 0.0), (1 - max(holes) / sum(holes) if holes else 0.0)
""",
                "measures the waste inside reservations",
            ),
        ),
        right=(
            Right(
                "as fractions",
                """
from fractions import Fraction

def fragmentation(owners, written):
    num_held = sum(owner is not None for owner in owners)
    holes = [len(list(run)) for owner, run in groupby(owners) if owner is None]
    internal = 1 - Fraction(sum(written.values()), num_held) if num_held else Fraction(0)
    return internal, 1 - Fraction(max(holes), sum(holes)) if holes else Fraction(0)
""",
            ),
            Right(
                "NumPy's floats",
                """
def fragmentation(owners, written):
    num_held = sum(owner is not None for owner in owners)
    holes = [len(list(run)) for owner, run in groupby(owners) if owner is None]  # their lengths
    internal = 1 - sum(written.values()) / num_held if num_held else 0.0
    external = 1 - max(holes) / sum(holes) if holes else 0.0
    return np.float64(internal), np.float32(external)
""",
            ),
        ),
    ),
    "1.19": Bank(
        wrong=(
            Wrong(
                "write_token overwrites the last slot when pages run out",
                """
from twophase.core.errors import OutOfBlocksError

def admit(cache, num_prompt):
    table = cache.open([0] * num_prompt)
    if not cache.can_grow(table, num_prompt):
        cache.close(table)
        return None
    cache.grow(table, num_prompt)
    return table

def write_token(cache, table):
    try:
        cache.grow(table, table.num_tokens + 1)
    except OutOfBlocksError:
        pass
    return table.slot_of(table.num_tokens - 1)

def finish(cache, table):
    cache.close(table)
""",
                "says when pages run out",
            ),
            Wrong(
                "refuses an exact fit",
                {1: "not cache.can_grow(table, num_prompt + 1)"},
                "takes the pages that the prompt fills",
            ),
            Wrong(
                "at most 64 tokens",
                {1: "num_prompt > 64 or not cache.can_grow(table, num_prompt)"},
                "takes the pages that the prompt fills",
            ),
            Wrong(
                "pages of four",
                """
def admit(cache, num_prompt):
    table = cache.open([0] * num_prompt)
    if -(-num_prompt // 4) > cache.num_free_blocks:
        cache.close(table)
        return None
    cache.grow(table, num_prompt)
    return table

def write_token(cache, table):
    cache.grow(table, table.num_tokens + 1)
    return table.slot_of(table.num_tokens - 1)

def finish(cache, table):
    cache.close(table)
""",
                "takes the pages that the prompt fills",
            ),
        ),
    ),
    "1.20": Bank(
        wrong=(
            Wrong("running sums in float32", {1: "probs.cumsum(-1)"}, "adds in float64"),
            Wrong(
                "takes the last sum for 1",
                """
def draw(probs, u):
    cdf = probs.double().cumsum(-1)
    target = u[:, None]  # one number per row
    return (cdf <= target).sum(-1)
""",
                "adds in float64",
            ),
            Wrong(
                "looks at 256 tokens",
                {1: "probs[:, :256].double().cumsum(-1)"},
                "takes the first token whose running sum exceeds u",
            ),
        ),
    ),
    "1.21": Bank(
        wrong=(
            Wrong(
                "temperature not below 0.1",
                """
def apply_temperature(logits, temperature):
    return logits / max(temperature, 0.1)
""",
                "raises probabilities to the power 1/T",
            ),
            Wrong(
                "clamps logits to +-1e4",
                """
def apply_temperature(logits, temperature):
    return (logits / temperature).clamp(-1e4, 1e4)
""",
                "stays finite for large logits",
            ),
            Wrong(
                "temperature not above 10",
                {1: "logits / min(temperature, 10)"},
                "raises probabilities to the power 1/T",
            ),
            Wrong(
                "-inf becomes a number",
                {1: "(logits / temperature).nan_to_num(neginf=-50.0)"},
                "stays finite for large logits",
            ),
        ),
    ),
    "1.23": Bank(
        wrong=(
            Wrong(
                "compares probabilities: what underflows is tied",
                """
def keep_top_k(logits, k):
    probs = logits.softmax(-1)
    lowest = probs.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(probs < lowest, -math.inf)
""",
                "keeps the k likeliest, however far below the best",
            ),
            Wrong(
                "k at most 64",
                {1: "logits.topk(min(k, 64, logits.shape[-1])).values[:, -1:]"},
                "keeps the k likeliest of each row",
            ),
            Wrong(
                "logits not below -100",
                {2: "logits.clamp(min=-100).masked_fill(logits < lowest, -math.inf)"},
                "keeps the k likeliest, however far below the best",
            ),
        ),
    ),
    "1.24": Bank(
        wrong=(
            Wrong(
                "looks at the 64 likeliest only",
                """
def keep_top_p(logits, p):
    probs = logits.softmax(-1)
    best = probs.topk(min(64, probs.shape[-1])).values
    before = best.cumsum(-1) - best
    lowest = best.masked_fill(before >= p, 1.0).amin(-1, keepdim=True)
    return logits.masked_fill(probs < lowest, -math.inf)
""",
                "keeps hundreds where hundreds are needed",
            ),
            Wrong(
                "half-precision sums",
                """
def keep_top_p(logits, p):
    probs = logits.softmax(-1)
    ordered = probs.sort(-1, descending=True).values
    before = (ordered.half().cumsum(-1) - ordered.half()).float()
    lowest = ordered.masked_fill(before >= p, 1.0).amin(-1, keepdim=True)
    return logits.masked_fill(probs < lowest, -math.inf)
""",
                "keeps hundreds where hundreds are needed",
            ),
            Wrong(
                "sums in bfloat16",
                {2: "(ordered.bfloat16().cumsum(-1) - ordered.bfloat16()).float()"},
                "keeps the tokens up to the one that crosses p",
            ),
            Wrong(
                "looks at the 256 likeliest",
                {1: "probs.topk(min(256, probs.shape[-1])).values"},
                "keeps hundreds where hundreds are needed",
            ),
        ),
    ),
    "1.25": Bank(
        wrong=(
            Wrong(
                "min_p below 0.01 switches it off",
                """
def keep_min_p(logits, min_p):
    if min_p < 0.01:
        return logits.clone()
    probs = logits.softmax(-1)
    return logits.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), -math.inf)
""",
                "keeps what has min_p times the best probability",
            ),
            Wrong(
                "min_p not below 0.01",
                {1: "max(min_p, 0.01) * probs.amax(-1, keepdim=True)"},
                "keeps what has min_p times the best probability",
            ),
            Wrong(
                "min_p below 1e-3 is off",
                {1: "(min_p if min_p >= 1e-3 else 0) * probs.amax(-1, keepdim=True)"},
                "keeps what has min_p times the best probability",
            ),
        ),
    ),
    "1.26": Bank(
        wrong=(
            Wrong(
                "never more than 100 tokens",
                """
def complete(next_token, prompt_ids, stop_ids, max_tokens):
    ids = list(prompt_ids)
    for _ in range(min(max_tokens, 100)):
        token = next_token(ids)
        ids.append(token)
        if token in stop_ids:
            return ids[len(prompt_ids):], "stop"
    return ids[len(prompt_ids):], "length"
""",
                "ends after max_tokens new tokens",
            ),
            Wrong("token 0 never stops", {2: "token and token in stop_ids"}, "ends with the stop token, and keeps it"),
            Wrong(
                "at most 256",
                {3: "len(ids) - len(prompt_ids) >= min(max_tokens, 256)"},
                "ends after max_tokens new tokens",
            ),
            Wrong("no stop ids means token 0", {2: "token in (stop_ids or {0})"}, "ends after max_tokens new tokens"),
        ),
    ),
}
