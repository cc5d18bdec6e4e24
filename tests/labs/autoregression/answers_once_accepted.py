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
    "1.5": Bank(
        wrong=(
            Wrong(
                "mask of -50 instead of minus infinity",
                {3: "scores.masked_fill(~visible, -50.0)"},
                "survives scores of any size",
            ),
            Wrong("always eight features", {1: "q @ k.mT / 8**0.5"}, "matches a loop over queries"),
            Wrong("-1e4 for minus infinity", {3: "scores.masked_fill(~visible, -1e4)"}, "survives scores of any size"),
            Wrong(
                "exp without the maximum",
                {4: "scores.exp() / scores.exp().sum(-1, keepdim=True)"},
                "survives scores of any size",
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
    "1.6": Bank(
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
    "1.9": Bank(
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
                {3: 'np.prod([2, config["num_hidden_layers"], num_kv_heads, head_dim, bytes_per_value])'},
            ),
        ),
    ),
    "1.10": Bank(
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
    "1.13": Bank(
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
                "takes u as a share of the last sum",
            ),
            Wrong(
                "looks at 256 tokens",
                {1: "probs[:, :256].double().cumsum(-1)"},
                "takes the first token whose running sum exceeds u",
            ),
        ),
    ),
    "1.15": Bank(
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
