"""Wrong answers that an earlier check accepted, and right ones that it refused."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = {
    "2.1": Bank(
        wrong=(
            Wrong(
                "exp without taking the maximum out",
                """
def naive_attention(q, k, v):
    L, H, D = q.shape
    scores = torch.einsum("ihd,jhd->hij", q, k) / D**0.5
    weights = scores.exp().tril()
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("hij,jhd->ihd", weights, v).reshape(L, H * D)
""",
                "sees the past and itself",
            ),
            Wrong("always eight numbers", {1: "q @ k.mT / 8**0.5"}, "matches a loop over queries and heads"),
            Wrong(
                "-1e4 for what is hidden",
                """
def naive_attention(q, k, v):
    L, H, D = q.shape
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    scores = q @ k.mT / D**0.5
    visible = torch.arange(L) <= torch.arange(L)[:, None]
    scores = scores.masked_fill(~visible, -1e4)
    weights = scores.softmax(-1)
    heads = weights @ v
    return heads.transpose(0, 1).reshape(L, H * D)
""",
                "sees the past and itself",
            ),
            Wrong(
                "sees the last 64 tokens",
                {2: "torch.ones(L, L, dtype=torch.bool).tril().triu(-63)"},
                "sees the past and itself",
            ),
            Wrong(
                "at most 32 heads",
                {4: "heads.transpose(0, 1).reshape(L, H * D) if H <= 32 else torch.zeros(L, H * D)"},
                "averages the values",
            ),
        ),
        right=(
            Right(
                "in float64",
                """
def naive_attention(q, k, v):
    L, H, D = q.shape
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    scores = (q @ k.mT / D**0.5).masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(L, H * D)
""",
            ),
        ),
    ),
    "2.3": Bank(
        wrong=(
            Wrong(
                "a table of 128 positions",
                """
def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    table = torch.arange(128)[:, None] * theta ** -(torch.arange(half) / half)
    angles = table[positions]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
""",
                "matches multiplication by complex numbers",
            ),
            Wrong(
                "angles in float16",
                """
def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    frequencies = theta ** -(torch.arange(half) / half)
    angles = (positions[:, None] % 2048).half().float() * frequencies
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
""",
                "matches multiplication by complex numbers",
            ),
            Wrong(
                "always the base of the check",
                {1: "100.0 ** -(torch.arange(half) / half)"},
                "turns each pair by its angle",
            ),
            Wrong(
                "positions up to 2048",
                {2: "positions.clamp(max=2048)[:, None] * frequencies"},
                "matches multiplication by complex numbers",
            ),
            Wrong(
                "remembers the angles",
                """
_angles = {}
def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    key = (tuple(positions.tolist()), half)
    if key not in _angles:
        _angles[key] = positions[:, None] * theta ** -(torch.arange(half) / half)
    angles = _angles[key]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
""",
                "turns each pair by its angle",
            ),
        ),
    ),
    "2.4": Bank(
        wrong=(
            Wrong(
                "always the base of the check",
                {2: "rotate(q, positions, 100.0), rotate(k, positions, 100.0)"},
                "places tokens at their positions",
            ),
            Wrong(
                "always eight numbers a head",
                """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q = (x @ layer.w_q).view(L, layer.num_heads, D)
    k = (x @ layer.w_k).view(L, layer.num_kv_heads, D)
    v = (x @ layer.w_v).view(L, layer.num_kv_heads, D)
    q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return naive_attention(q * (D / 8) ** 0.5, k, v) @ layer.w_o
""",
                "places tokens at their positions",
            ),
        ),
    ),
    "2.5": Bank(
        wrong=(
            Wrong(
                "logits always in two bytes",
                """
def matmul_cost(rows, inner, columns, bytes_per_number):
    num_flops = 2 * rows * inner * columns
    num_moved = rows * inner + inner * columns + rows * columns
    return num_flops, num_moved * bytes_per_number


def prefill_cost(shape, num_tokens, bytes_per_number):
    pairs = num_tokens * (num_tokens + 1) // 2
    num_flops = 4 * pairs * shape.num_heads * shape.head_dim
    num_moved = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    num_bytes = num_moved * bytes_per_number
    for inner, columns in shape.projections.values():
        product = matmul_cost(num_tokens, inner, columns, bytes_per_number)
        num_flops, num_bytes = num_flops + product[0], num_bytes + product[1]
    last = matmul_cost(1, shape.hidden, shape.vocab, 2)
    return shape.num_layers * num_flops + last[0], shape.num_layers * num_bytes + last[1]
""",
                "counts the bytes of a prefill",
            ),
            Wrong(
                "always two bytes",
                """
def matmul_cost(rows, inner, columns, bytes_per_number):
    num_flops = 2 * rows * inner * columns
    num_moved = rows * inner + inner * columns + rows * columns
    return num_flops, num_moved * bytes_per_number


def prefill_cost(shape, num_tokens, bytes_per_number):
    pairs = num_tokens * (num_tokens + 1) // 2
    num_flops = 4 * pairs * shape.num_heads * shape.head_dim
    num_moved = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    num_bytes = num_moved * 2
    for inner, columns in shape.projections.values():
        product = matmul_cost(num_tokens, inner, columns, bytes_per_number)
        num_flops, num_bytes = num_flops + product[0], num_bytes + product[1]
    last = matmul_cost(1, shape.hidden, shape.vocab, bytes_per_number)
    return shape.num_layers * num_flops + last[0], shape.num_layers * num_bytes + last[1]
""",
                "counts the bytes of a prefill",
            ),
            Wrong(
                "a third of the heads",
                {5: "2 * num_tokens * (shape.num_heads + shape.num_heads // 3) * shape.head_dim"},
                "counts the bytes of a prefill",
            ),
            Wrong(
                "at most 128 tokens",
                """
def matmul_cost(rows, inner, columns, bytes_per_number):
    num_flops = 2 * rows * inner * columns
    num_moved = rows * inner + inner * columns + rows * columns
    return num_flops, num_moved * bytes_per_number


def prefill_cost(shape, num_tokens, bytes_per_number):
    pairs = min(num_tokens, 128) * (min(num_tokens, 128) + 1) // 2
    num_flops = 4 * pairs * shape.num_heads * shape.head_dim
    num_moved = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    num_bytes = num_moved * bytes_per_number
    for inner, columns in shape.projections.values():
        product = matmul_cost(num_tokens, inner, columns, bytes_per_number)
        num_flops, num_bytes = num_flops + product[0], num_bytes + product[1]
    last = matmul_cost(1, shape.hidden, shape.vocab, bytes_per_number)
    return shape.num_layers * num_flops + last[0], shape.num_layers * num_bytes + last[1]
""",
                "counts the FLOPs of a prefill",
            ),
        ),
    ),
    "2.8": Bank(
        wrong=(
            Wrong(
                "keeps clones of everything",
                """
def online_softmax(stream, M, D):
    scores, values = [torch.full((M,), -torch.inf)], [torch.zeros(D)]
    for s, v in stream:
        scores.append(s.clone())
        values.append(v.clone())
    scores, values = torch.stack(scores, 1), torch.stack(values)
    m = scores.amax(-1)
    m_safe = m.masked_fill(m == -torch.inf, 0)
    p = torch.exp2(scores - m_safe[:, None])
    total = p.sum(-1)
    return p @ values / torch.where(total == 0, 1, total)[:, None], m + total.log2()
""",
                "keeps no copies either",
            ),
            Wrong(
                "keeps lists of numbers",
                """
def online_softmax(stream, M, D):
    scores, values = [], []
    for s, v in stream:
        scores.append(s.tolist())
        values.append(v.tolist())
    scores, values = torch.tensor(scores).reshape(-1, M).mT, torch.tensor(values).reshape(-1, D)
    if not scores.shape[1]:
        return torch.zeros(M, D), torch.full((M,), -torch.inf)
    m = scores.amax(-1)
    safe = m.masked_fill(m == -torch.inf, 0)
    p = torch.exp2(scores - safe[:, None])
    total = p.sum(-1)
    return p @ values / torch.where(total == 0, 1, total)[:, None], m + total.log2()
""",
                "keeps no copies either",
            ),
            Wrong(
                "one growing tensor",
                """
def online_softmax(stream, M, D):
    scores, values = torch.zeros(M, 0), torch.zeros(0, D)
    for s, v in stream:
        scores, values = torch.cat([scores, s[:, None]], 1), torch.cat([values, v[None]])
    if not scores.shape[1]:
        return torch.zeros(M, D), torch.full((M,), -torch.inf)
    m = scores.amax(-1)
    safe = m.masked_fill(m == -torch.inf, 0)
    p = torch.exp2(scores - safe[:, None])
    total = p.sum(-1)
    return p @ values / torch.where(total == 0, 1, total)[:, None], m + total.log2()
""",
                "keeps no copies either",
            ),
            Wrong(
                "at most 128 keys",
                """
def online_softmax(stream, M, D):
    row_max, row_sum, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in __import__('itertools').islice(stream, 128):
        new_max = torch.maximum(row_max, s)
        max_safe = new_max.masked_fill(new_max == -torch.inf, 0)
        rescale = torch.exp2(row_max - max_safe)
        p = torch.exp2(s - max_safe)
        row_sum = row_sum * rescale + p
        acc = acc * rescale[:, None] + p[:, None] * v
        row_max = new_max
    out = (
        acc / torch.where(row_sum == 0, 1, row_sum)[:, None]
    )
    return out, row_max + row_sum.log2()
""",
                "matches a softmax over all keys",
            ),
        ),
        right=(
            Right(
                "in float64",
                """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf).double(), torch.zeros(M).double(), torch.zeros(M, D).double()
    for s, v in stream:
        new = torch.maximum(m, s)
        safe = new.masked_fill(new == -torch.inf, 0)
        scale, p = torch.exp2(m - safe), torch.exp2(s - safe)
        m, l, acc = new, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], m + l.log2()
""",
            ),
        ),
    ),
    "2.9": Bank(
        wrong=(
            Wrong(
                "writes into the halves it was given",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    m = m.masked_fill(m == -torch.inf, 0)
    weight_a, weight_b = torch.exp2(lse_a - m), torch.exp2(lse_b - m)
    total = weight_a + weight_b
    out_a *= weight_a[:, None]
    out_a += weight_b[:, None] * out_b
    out_a /= torch.where(total == 0, 1, total)[:, None]
    return out_a, m + total.log2()
""",
                "leaves its inputs alone",
            ),
            Wrong(
                "hands an input back",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    if bool((lse_b == -torch.inf).all()):
        return out_a, lse_a
    m = torch.maximum(lse_a, lse_b).masked_fill(torch.maximum(lse_a, lse_b) == -torch.inf, 0)
    lse_a -= m
    lse_b -= m
    a, b = torch.exp2(lse_a), torch.exp2(lse_b)
    total = a + b
    out = (a[:, None] * out_a + b[:, None] * out_b) / torch.where(total == 0, 1, total)[:, None]
    return out, m + total.log2()
""",
                "leaves its inputs alone",
            ),
        ),
    ),
    "2.10": Bank(
        wrong=(
            Wrong(
                "reads by peek, loads for show",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    q, k, v = (memory.peek(name) for name in "qkv")
    hidden = torch.ones(L, L, dtype=torch.bool).triu(1)
    out = (q @ k.mT / D**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v
    for start in range(0, L, block_q):
        memory.load("q", start, start + block_q)
        for at in range(0, min(start + block_q, L), block_k):
            memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
        memory.store("out", start, out[start:start + block_q])
""",
                "stores every row once",
            ),
            Wrong(
                "keeps all scores in fast memory",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows, scores, values = torch.arange(start, start + len(q)), [], []
        for at in range(0, start + len(q), block_k):
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            hidden = torch.arange(at, at + len(k)) > rows[:, None]
            scores.append((q @ k.mT / D**0.5).masked_fill(hidden, -torch.inf))
            values.append(v)
        memory.store("out", start, torch.cat(scores, 1).softmax(-1) @ torch.cat(values))
""",
                "needs little fast memory",
            ),
            Wrong("always eight numbers", {2: "q @ k.mT * (LOG2_E / 8**0.5)"}, "gives exact attention"),
        ),
        right=(
            Right(
                "the last key tile up to the diagonal",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows = torch.arange(start, start + len(q))
        row_max, row_sum, acc = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for at in range(0, start + len(q), block_k):
            end = min(at + block_k, start + len(q))
            k, v = memory.load("k", at, end), memory.load("v", at, end)
            scores = q @ k.mT * (LOG2_E / D**0.5)
            hidden = torch.arange(at, at + len(k)) > rows[:, None]
            scores = scores.masked_fill(hidden, -torch.inf)
            new_max = torch.maximum(row_max, scores.amax(-1))
            p, rescale = torch.exp2(scores - new_max[:, None]), torch.exp2(row_max - new_max)
            row_sum = row_sum * rescale + p.sum(-1)
            acc = acc * rescale[:, None] + p @ v
            row_max = new_max
        memory.store(
            "out", start, acc / row_sum[:, None]
        )
""",
            ),
        ),
    ),
    "2.11": Bank(
        wrong=(
            Wrong(
                "at most 128 queries",
                """
def count_traffic(L, D, block_q, block_k, bytes_per_number):
    standard = 4 * L * D + 4 * L * L
    tiled = 2 * L * D
    for start in range(0, min(L, 200), block_q):
        end = min(start + block_q, L)
        num_keys = min(-(-end // block_k) * block_k, L)
        tiled += 2 * num_keys * D
    return standard * bytes_per_number, tiled * bytes_per_number
""",
                "counts the tiled way",
            ),
        ),
    ),
    "2.12": Bank(
        wrong=(
            Wrong(
                "-1e4 for minus infinity", {2: "tl.where(visible, scores, -1e4)"}, "leaves rows alone that see nothing"
            ),
            Wrong(
                "-1e30 for minus infinity",
                {2: "tl.where(visible, scores, -1e30)"},
                "leaves rows alone that see nothing",
            ),
        ),
    ),
    "2.13": Bank(
        wrong=(
            Wrong("tables 16 entries wide", {6: "block_tables_ptr + sequence * 16"}, "matches attention in a loop"),
        ),
    ),
    "2.14": Bank(
        wrong=(
            Wrong(
                "pages that are powers of two",
                {2: "pages * block_size + (positions & (block_size - 1))"},
                "finds page and offset",
            ),
            Wrong(
                "at most 16 pages",
                {1: "block_table[(positions // block_size).clamp(max=15)].long()"},
                "finds page and offset",
            ),
        ),
    ),
    "2.15": Bank(
        wrong=(
            Wrong(
                "pages of four", {4: "(slot // 4 * H_KV + offs_h) * 4 + slot % 4"}, "takes any number and size of heads"
            ),
        ),
    ),
    "2.17": Bank(
        wrong=(
            Wrong(
                "starts marked: an empty last prompt is an IndexError",
                """
def packed_attention(q, k, v, cu_lens, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    starts = torch.zeros(len(q), dtype=torch.long)
    starts[cu_lens[1:-1].long()] = 1
    owner = starts.cumsum(0)
    visible = (owner[:, None] == owner) & (tokens[:, None] >= tokens)
    weights = (torch.einsum("qhd,khd->hqk", q, k) * scale).masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
""",
                "matches each prompt alone",
            ),
            Wrong(
                "at most 64 tokens of history",
                """
def packed_attention(q, k, v, cu_lens, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    lengths = cu_lens.diff()
    owner = torch.repeat_interleave(lengths.long())
    same = owner[:, None] == owner
    visible = same & (tokens[:, None] >= tokens) & (tokens[:, None] < tokens + 64)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
""",
                "matches each prompt alone",
            ),
            Wrong(
                "ignores the scale",
                """
def packed_attention(q, k, v, cu_lens, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    lengths = cu_lens.diff()
    owner = torch.repeat_interleave(lengths.long())
    same = owner[:, None] == owner
    visible = same & (tokens[:, None] >= tokens)
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
""",
                "matches each prompt alone",
            ),
            Wrong(
                "-50 for minus infinity",
                {4: "scores.masked_fill(~visible, -50.0).softmax(-1)"},
                "works at any level of scores",
            ),
            Wrong(
                "exp without the maximum",
                {4: "(e := scores.masked_fill(~visible, -torch.inf).exp()) / e.sum(-1, keepdim=True)"},
                "works at any level of scores",
            ),
        ),
    ),
    "2.18": Bank(
        wrong=(
            Wrong(
                "sees the last 16 tokens only",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, scale):
    block_size = k_cache.shape[2]
    seq_len = num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, THETA), rotate(k, positions, THETA)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    visible = (torch.arange(seq_len) <= positions[:, None]) & (torch.arange(seq_len) > positions[:, None] - 16)
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "sees the history",
            ),
            Wrong(
                "ignores the scale",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, scale):
    block_size = k_cache.shape[2]
    seq_len = num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, THETA), rotate(k, positions, THETA)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    visible = torch.arange(seq_len) <= positions[:, None]
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * q.shape[-1] ** -0.5
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "starts a prompt",
            ),
            Wrong(
                "pages of four",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, scale):
    block_size = 4
    seq_len = num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, THETA), rotate(k, positions, THETA)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    visible = torch.arange(seq_len) <= positions[:, None]
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "writes K and V into their slots",
            ),
            Wrong(
                "sees 64 tokens",
                {5: "((d := positions[:, None] - torch.arange(seq_len)) >= 0) & (d < 64)"},
                "sees the history",
            ),
        ),
    ),
    "2.19": Bank(
        wrong=(
            Wrong(
                "a program for every token of the longest chunk",
                {4: "(longest, len(seq_lens), num_kv_heads)"},
                "launches no program in vain",
            ),
            Wrong(
                "one more block than needed",
                {4: "(longest // block_q + 1, len(seq_lens), num_kv_heads)"},
                "launches no program in vain",
            ),
            Wrong(
                "twice the programs for writing",
                {4: "(triton.cdiv(longest, block_q) + 1, len(seq_lens), num_kv_heads)"},
                "launches no program in vain",
            ),
            Wrong(
                "a sequence too many ...",
                {4: "(triton.cdiv(longest, block_q), len(seq_lens), num_heads)"},
                "attends for short chunks",
            ),
        ),
    ),
}
