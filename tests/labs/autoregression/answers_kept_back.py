"""Answers by another hand than that of the checks: kept back while these were written."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = {
    "1.3": Bank(
        wrong=(
            Wrong(
                "remembers",
                """
kept = {}
def greedy(model, ids, num_new, eos_id):
    for _ in range(num_new):
        key = tuple(ids.tolist())
        if key not in kept:
            kept[key] = model(ids[None]).logits[0, -1].argmax()
        next_id = kept[key]
        ids = torch.cat([ids, next_id[None]])
        if next_id == eos_id:
            break
    return ids
""",
                "starts anew in each call",
            ),
            Wrong(
                "likeliest of exp (overflow)",
                """
def greedy(model, ids, num_new, eos_id):
    for _ in range(num_new):
        weights = model(ids[None]).logits[0, -1].exp()
        next_id = (weights / weights.sum()).argmax()
        ids = torch.cat([ids, next_id[None]])
        if next_id == eos_id:
            break
    return ids
""",
                "picks the likeliest next token",
            ),
            Wrong(
                "pass too many",
                """
def greedy(model, ids, num_new, eos_id):
    T = len(ids)
    while True:
        logits = model(ids[None]).logits
        if len(ids) == T + num_new or (len(ids) > T and ids[-1] == eos_id):
            return ids
        ids = torch.cat([ids, logits[0, -1:].argmax(-1)])
""",
                "takes one pass per new token",
            ),
            Wrong(
                "all first, cut afterwards",
                """
def greedy(model, ids, num_new, eos_id):
    T = len(ids)
    for _ in range(num_new):
        next_id = model(ids[None]).logits[0, -1].argmax()
        ids = torch.cat([ids, next_id[None]])
    ends = (ids[T:] == eos_id).nonzero()
    return ids[: T + int(ends[0]) + 1] if len(ends) else ids
""",
                "takes one pass per new token",
            ),
        ),
        right=(
            Right(
                "recursion",
                """
def greedy(model, ids, num_new, eos_id):
    if num_new == 0:
        return ids
    token = model(ids.unsqueeze(0)).logits[0][-1].max(-1).indices
    longer = torch.cat((ids, token.view(1)))
    return longer if token.item() == eos_id else greedy(model, longer, num_new - 1, eos_id)
""",
            ),
            Right(
                "numpy argmax, while",
                """
def greedy(model, ids, num_new, eos_id):
    left, ended = num_new, False
    while left and not ended:
        row = model(ids[None, :]).logits[0, -1].detach().float().numpy()
        best = int(np.argmax(row))
        ids = torch.cat([ids, torch.tensor([best])])
        left, ended = left - 1, best == eos_id
    return ids
""",
            ),
        ),
    ),
    "1.4": Bank(
        wrong=(
            Wrong(
                "prompt is read for nothing new (formula)",
                """
def count_work(num_prompt, num_new, cached):
    if cached:
        n = num_prompt + num_new - 1
        return n, n * (n + 1) // 2
    return sum(range(num_prompt, num_prompt + num_new)), sum(n * (n + 1) // 2 for n in range(num_prompt, num_prompt + num_new))
""",
                "counts tokens with a cache",
            ),
            Wrong(
                "cached by default kept in a global",
                """
start = 0
def count_work(num_prompt, num_new, cached):
    global start
    tokens = pairs = 0
    for length in range(num_prompt, num_prompt + num_new):
        tokens += length - start
        pairs += sum(p + 1 for p in range(start, length))
        if cached: start = length
    return tokens, pairs
""",
                "counts tokens without a cache",
            ),
        ),
        right=(
            Right(
                "recursion from the last pass",
                """
def count_work(num_prompt, num_new, cached):
    from math import comb
    if num_new == 0:
        return (0, 0)
    if cached:
        return num_prompt + num_new - 1, comb(num_prompt + num_new, 2)
    return comb(num_prompt + num_new, 2) - comb(num_prompt, 2), comb(num_prompt + num_new + 1, 3) - comb(num_prompt + 1, 3)
""",
            ),
        ),
    ),
    "1.5": Bank(
        wrong=(
            Wrong(
                "maximum of the hidden too",
                """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    visible = torch.arange(S) <= torch.arange(S - L, S)[:, None]
    s = q @ k.mT / q.shape[-1] ** 0.5
    w = (s - s.amax(-1, keepdim=True)).exp() * visible
    return (w / w.sum(-1, keepdim=True)) @ v
""",
                "hides the future",
            ),
            Wrong(
                "maximum of all",
                """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    visible = torch.arange(S) <= torch.arange(S - L, S)[:, None]
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
    w = (s - s.max()).exp()
    return (w / w.sum(-1, keepdim=True)) @ v
""",
                "hides the future",
            ),
            Wrong(
                "minus 10000 added",
                """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    visible = torch.arange(S) <= torch.arange(S - L, S)[:, None]
    return (q @ k.mT / q.shape[-1] ** 0.5 - 1e4 * ~visible).softmax(-1) @ v
""",
                "hides the future",
            ),
            Wrong(
                "mask kept by L",
                """
MASKS = {}

def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    if L not in MASKS or MASKS[L].shape[1] < S:
        MASKS[L] = torch.arange(S) <= torch.arange(S - L, S)[:, None]
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~MASKS[L][:, :S], -torch.inf).softmax(-1) @ v
""",
                "hides the future",
            ),
        ),
        right=(
            Right(
                "additive mask, no mask for one",
                """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    s = torch.bmm(q, k.transpose(-1, -2)) * q.size(-1) ** -0.5
    if L > 1:
        s = s + torch.full((L, S), -torch.inf, dtype=s.dtype).triu(S - L + 1)
    w = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))
    return torch.bmm(w, v)
""",
            ),
            Right(
                "online softmax over keys",
                """
def attend(q, k, v):
    L, S = q.shape[1], k.shape[1]
    m = torch.full(q.shape[:2], -torch.inf, dtype=q.dtype)
    l = torch.zeros_like(m)
    acc = torch.zeros_like(q)
    p = torch.arange(S - L, S)
    for j in range(S):
        s = (q * k[:, j:j+1]).sum(-1) / q.shape[-1] ** 0.5
        s = torch.where(p >= j, s, -torch.inf)
        new = torch.maximum(m, s)
        old = torch.exp(m - new)
        e = torch.exp(s - new)
        l = l * old + e
        acc = acc * old[..., None] + e[..., None] * v[:, j:j+1]
        m = new
    return acc / l[..., None]
""",
            ),
        ),
    ),
    "1.6": Bank(
        wrong=(
            Wrong(
                "one buffer for all",
                """
BUFFERS = {}

def step(toy, new_ids, cache):
    old_k, old_v = cache
    x = toy.embed(new_ids, old_k.shape[1])
    q, new_k, new_v = toy.project(x)

    S, n = old_k.shape[1], old_k.shape[1] + new_k.shape[1]
    key = (old_k.shape[0], old_k.shape[2])
    if key not in BUFFERS:
        BUFFERS[key] = torch.zeros(2, key[0], 2048, key[1])
    k, v = BUFFERS[key]
    k[:, S:n], v[:, S:n] = new_k, new_v
    k, v = k[:, :n], v[:, :n]
    return toy.logits(x, attend(q, k, v)), (k, v)
""",
                "knows one text from another",
            ),
            Wrong(
                "no mask behind a cache",
                """
def step(toy, new_ids, cache):
    old_k, old_v = cache
    x = toy.embed(new_ids, old_k.shape[1])
    q, new_k, new_v = toy.project(x)
    k, v = torch.cat([old_k, new_k], 1), torch.cat([old_v, new_v], 1)
    if old_k.shape[1] and q.shape[1] > 1:
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    else:
        a = attend(q, k, v)
    return toy.logits(x, a), (k, v)
""",
                "gives the logits of one pass",
            ),
        ),
        right=(
            Right(
                "sdpa instead of attend, list",
                """
def step(toy, new_ids, cache):
    x = toy.embed(new_ids, start=cache[0].shape[1])
    q, k, v = toy.project(x)
    k, v = torch.hstack([cache[0], k]), torch.hstack([cache[1], v])
    L, S = q.shape[1], k.shape[1]
    mask = torch.ones(L, S, dtype=torch.bool).tril(S - L)
    return toy.logits(x, torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)), [k, v]
""",
            ),
        ),
    ),
    "1.7": Bank(
        wrong=(
            Wrong(
                "end at token 0",
                """
def generate(step, cache, prompt, num_new):
    ids = unread = prompt
    for _ in range(num_new):
        logits, cache = step(unread, cache)
        unread = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, unread], 1)
        if (unread == 0).all():
            break
    return ids
""",
                "writes as many tokens as asked",
            ),
            Wrong(
                "the prompt's last read twice",
                """
def generate(step, cache, prompt, num_new):
    ids = prompt
    _, cache = step(prompt, cache)
    for _ in range(num_new):
        logits, cache = step(ids[:, -1:], cache)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    return ids
""",
                "writes what recomputing writes",
            ),
        ),
        right=(
            Right(
                "recursion",
                """
def generate(step, cache, prompt, num_new):
    def go(ids, unread, cache, left):
        if not left:
            return ids
        logits, cache = step(unread, cache)
        best = logits[:, -1, :].topk(1, -1).indices
        return go(torch.hstack([ids, best]), best, cache, left - 1)
    return go(prompt, prompt, cache, num_new)
""",
            ),
            Right(
                "lists and numpy",
                """
def generate(step, cache, prompt, num_new):
    rows = prompt.tolist()
    new = prompt
    for _ in range(num_new):
        logits, cache = step(new, cache)
        best = np.asarray(logits[:, -1].detach()).argmax(-1)
        for row, token in zip(rows, best):
            row.append(int(token))
        new = torch.from_numpy(best).reshape(-1, 1)
    return torch.tensor(rows)
""",
            ),
        ),
    ),
    "1.9": Bank(
        wrong=(
            Wrong(
                "the larger of both dims",
                """
def kv_bytes_per_token(config, bytes_per_value):
    H = config["num_attention_heads"]
    L = config["num_hidden_layers"]
    N = config.get("num_key_value_heads", H)
    D = max(config.get("head_dim", 0), config["hidden_size"] // H)
    return 2 * L * N * D * bytes_per_value
""",
                "believes a head_dim that the file states",
            ),
            Wrong(
                "the smaller of both dims",
                """
def kv_bytes_per_token(config, bytes_per_value):
    H = config["num_attention_heads"]
    L = config["num_hidden_layers"]
    N = config.get("num_key_value_heads", H)
    D = min(config.get("head_dim", 10**9), config["hidden_size"] // H)
    return 2 * L * N * D * bytes_per_value
""",
                "believes a head_dim that the file states",
            ),
            Wrong(
                "eight by default",
                """
def kv_bytes_per_token(config, bytes_per_value):
    H = config["num_attention_heads"]
    L = config["num_hidden_layers"]
    N = config.get("num_key_value_heads", 8)
    D = config.get("head_dim", config["hidden_size"] // H)
    return 2 * L * N * D * bytes_per_value
""",
                "reads files without num_key_value_heads",
            ),
        ),
        right=(
            Right(
                "sum over layers",
                """
def kv_bytes_per_token(config, bytes_per_value):
    total = 0
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    for _layer in range(config["num_hidden_layers"]):
        for _kind in "KV":
            total += heads * dim * bytes_per_value
    return total
""",
            ),
        ),
    ),
    "1.10": Bank(
        wrong=(
            Wrong(
                "whole GB left",
                """
def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):
    left = int(card_gb * utilisation - weights_gb - workspace_gb) * GB
    return max(0, int(left // request_bytes))
""",
                "keeps the headroom",
            ),
            Wrong(
                "zero only if the weights do not fit",
                """
def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):
    if weights_gb > card_gb:
        return 0
    left = card_gb * GB * utilisation - (weights_gb + workspace_gb) * GB
    return int(left // request_bytes)
""",
                "serves none when the weights fill the card",
            ),
            Wrong(
                "share twice",
                """
def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):
    left = card_gb * GB * utilisation - (weights_gb + workspace_gb) * GB
    return max(0, int(utilisation * left // request_bytes))
""",
                "keeps the headroom",
            ),
            Wrong(
                "workspace per request",
                """
def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):
    left = card_gb * GB * utilisation - weights_gb * GB
    return max(0, int(left // (request_bytes + workspace_gb * GB)))
""",
                "leaves room for the workspace",
            ),
        ),
        right=(
            Right(
                "fractions",
                """
def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):
    from fractions import Fraction as F
    left = (F(str(card_gb)) * F(str(utilisation)) - F(str(weights_gb)) - F(str(workspace_gb))) * GB
    return max(0, left // F(request_bytes))
""",
            ),
            Right(
                "divmod in whole bytes",
                """
def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):
    left = round(card_gb * utilisation * GB) - round((weights_gb + workspace_gb) * GB)
    return divmod(left, request_bytes)[0] if left > 0 else 0
""",
            ),
        ),
    ),
    "1.13": Bank(
        wrong=(
            Wrong(
                "total of the first row",
                """
def draw(probs, u):
    cdf = probs.double().cumsum(-1)
    return (cdf <= u[:, None] * cdf[0, -1]).sum(-1).clamp(max=probs.shape[-1] - 1)
""",
                "takes u as a share of the last sum",
            ),
            Wrong(
                "compares in float32",
                """
def draw(probs, u):
    cdf = probs.double().cumsum(-1)
    return (cdf.float() <= (u[:, None] * cdf[:, -1:]).float()).sum(-1).clamp(max=probs.shape[-1] - 1)
""",
                "never draws what is impossible",
            ),
            Wrong(
                "sorted, mapped back",
                """
def draw(probs, u):
    values, order = probs.sort(-1, descending=True)
    cdf = values.double().cumsum(-1)
    at = (cdf <= u[:, None] * cdf[:, -1:]).sum(-1)
    return order.gather(-1, at[:, None])[:, 0]
""",
                "takes the first token whose running sum exceeds u",
            ),
            Wrong(
                "normalised in place",
                """
def draw(probs, u):
    probs /= probs.sum(-1, keepdim=True)
    cdf = probs.double().cumsum(-1)
    return (cdf <= u[:, None] * cdf[:, -1:]).sum(-1)
""",
                "leaves its inputs alone",
            ),
        ),
        right=(
            Right(
                "bisect",
                """
def draw(probs, u):
    import bisect
    out = torch.empty(len(u), dtype=torch.long)
    for i in range(len(u)):
        cdf = torch.cumsum(probs[i], 0, dtype=torch.float64)
        out[i] = bisect.bisect_right(cdf.tolist(), float(u[i]) * float(cdf[-1]))
    return out
""",
            ),
            Right(
                "numpy argmax of bool",
                """
def draw(probs, u):
    cdf = np.cumsum(probs.numpy().astype(np.float64), axis=1)
    return torch.from_numpy(np.argmax(cdf > u.numpy()[:, None] * cdf[:, -1:], axis=1))
""",
            ),
        ),
    ),
    "1.14": Bank(
        wrong=(
            Wrong(
                "dropped are -100",
                """
def keep_top_p(logits, p):
    ordered, order = logits.sort(-1, descending=True)
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    drop = before >= p
    return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -100.0)
""",
                "keeps the likeliest token whatever p is",
            ),
            Wrong(
                "dropped are the least float",
                """
def keep_top_p(logits, p):
    ordered, order = logits.sort(-1, descending=True)
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    drop = before >= p
    return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), torch.finfo(logits.dtype).min)
""",
                "keeps the likeliest token whatever p is",
            ),
            Wrong(
                "no maximum subtracted",
                """
def keep_top_p(logits, p):
    ordered, order = logits.sort(-1, descending=True)
    probs = ordered.exp() / ordered.exp().sum(-1, keepdim=True)
    drop = probs.cumsum(-1) - probs >= p
    return torch.full_like(logits, -math.inf).scatter(-1, order, ordered.masked_fill(drop, -math.inf))
""",
                "survives large logits",
            ),
            Wrong(
                "ascending without the last kept",
                """
def keep_top_p(logits, p):
    ordered, order = logits.sort(-1)
    sums = ordered.softmax(-1).cumsum(-1)
    drop = sums <= 1 - p
    return torch.full_like(logits, -math.inf).scatter(-1, order, ordered.masked_fill(drop, -math.inf))
""",
                "keeps one token for a tiny p",
            ),
        ),
        right=(
            Right(
                "ascending as transformers",
                """
def keep_top_p(logits, p):
    ordered, order = torch.sort(logits, descending=False)
    sums = ordered.softmax(dim=-1).cumsum(dim=-1)
    remove = sums <= (1 - p)
    remove[..., -1:] = False
    remove = remove.scatter(1, order, remove)
    return logits.masked_fill(remove, -float('inf'))
""",
            ),
            Right(
                "sum of the likelier, pairwise",
                """
def keep_top_p(logits, p):
    probs = logits.softmax(-1)
    likelier = (probs[:, None, :] * (probs[:, None, :] > probs[:, :, None])).sum(-1)
    return torch.where(likelier < p, logits, -math.inf)
""",
            ),
        ),
    ),
    "1.15": Bank(
        wrong=(
            Wrong(
                "asks once more",
                """
def complete(next_token, prompt_ids, stop_ids, max_tokens):
    out = []
    while True:
        token = next_token([*prompt_ids, *out])
        out.append(token)
        more = next_token([*prompt_ids, *out])
        if token in stop_ids:
            return out, 'stop'
        if len(out) >= max_tokens:
            return out, 'length'
""",
                "ends after max_tokens new tokens",
            ),
            Wrong(
                "output kept in a default",
                """
def complete(next_token, prompt_ids, stop_ids, max_tokens, out=[]):
    n = len(out)
    while True:
        token = next_token([*prompt_ids, *out[n:]])
        out.append(token)
        if token in stop_ids:
            return out, 'stop'
        if len(out) - n >= max_tokens:
            return out, 'length'
""",
                "ends after max_tokens new tokens",
            ),
            Wrong(
                "stop ids used up",
                """
def complete(next_token, prompt_ids, stop_ids, max_tokens):
    out = []
    while True:
        token = next_token([*prompt_ids, *out])
        out.append(token)
        if token in stop_ids:
            stop_ids.remove(token)
            return out, 'stop'
        if len(out) >= max_tokens:
            return out, 'length'
""",
                "ends with the stop token, and keeps it",
            ),
        ),
        right=(
            Right(
                "recursion",
                """
def complete(next_token, prompt_ids, stop_ids, max_tokens):
    token = next_token(list(prompt_ids))
    if token in stop_ids:
        return [token], 'stop'
    if max_tokens == 1:
        return [token], 'length'
    rest, reason = complete(next_token, [*prompt_ids, token], stop_ids, max_tokens - 1)
    return [token, *rest], reason
""",
            ),
            Right(
                "generator",
                """
def complete(next_token, prompt_ids, stop_ids, max_tokens):
    def tokens():
        text = [*prompt_ids]
        for _ in range(max_tokens):
            token = next_token(text)
            text = text + [token]
            yield token
            if token in set(stop_ids):
                return
    new = list(tokens())
    return new, 'stop' if new[-1] in stop_ids else 'length'
""",
            ),
        ),
    ),
}
