"""Answers to exercises of lab 3 that were written without a look at their checks, and showed what these did not see."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BUFFERS_WITH_ROOM_SHARED_BY_BRANCHES_3_1 = """
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
POSITION_KEPT_BETWEEN_CALLS_3_1 = """
POSITION = 0

def decode_step(model, new_ids, cache):
    global POSITION
    if cache[0][0].shape[1] == 0:
        POSITION = 0
    positions = torch.arange(POSITION, POSITION + len(new_ids))
    POSITION += len(new_ids)
    x, grown = (model.embed(new_ids), [])
    for layer, (old_k, old_v) in enumerate(cache):
        q, new_k, new_v = model.project(layer, x, positions)
        k, v = (torch.cat([old_k, new_k], dim=1), torch.cat([old_v, new_v], dim=1))
        grown.append((k, v))
        x = model.finish(layer, x, model.attend(q, k, v))
    return (model.logits(x[-1:])[0], grown)
"""
PADS_PAIRS_AS_LISTS_3_1 = """
def decode_step(model, new_ids, cache):
    n = cache[0][0].shape[1]
    positions = torch.arange(n, n + len(new_ids))
    x = model.embed(new_ids)
    result = [None] * len(cache)
    for layer in range(len(cache)):
        k, v = (torch.nn.functional.pad(old, (0, 0, 0, len(new_ids))) for old in cache[layer])
        q, k[:, n:], v[:, n:] = model.project(layer, x, positions)
        result[layer] = [k, v]
        x = model.finish(layer, x, model.attend(q, k, v))
    return (model.logits(x[-1:])[0], result)
"""
RECURSION_OVER_LAYERS_3_1 = """
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
CLASS_LEVEL_COUNTS_RESET_BY_EACH_NEW_POOL_3_3 = """
class BlockPool:

    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        BlockPool.ref_counts = [0] * num_blocks
        self.free_ids = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(f'{n} blocks wanted, {self.num_free} of {self.num_blocks} free.')
        block_ids = [self.free_ids.pop() for _ in range(n)]
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return block_ids

    def acquire(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f'Block {block_id} is free: allocate it instead.')
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f'Block {block_id} is free already.')
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            self.free_ids.append(block_id)
"""
RETURNS_THE_LIST_THAT_IT_KEEPS_3_3 = """
class BlockPool:

    def __init__(self, num_blocks):
        self.ref_counts = [0] * num_blocks
        self.free_ids = list(range(num_blocks))
        self.taken = []

    @property
    def num_free(self):
        return len(self.ref_counts) - len(self.taken)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError('')
        ids = [i for i in range(len(self.ref_counts)) if i not in self.taken][:n]
        if not self.taken:
            self.taken = ids
        else:
            self.taken.extend(ids)
        for i in ids:
            self.ref_counts[i] = 1
        return ids

    def acquire(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError('')
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError('')
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            self.taken.remove(block_id)
"""
RETURNS_A_TUPLE_3_3 = """
class BlockPool:

    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.free_ids = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(f'{n} blocks wanted, {self.num_free} of {self.num_blocks} free.')
        block_ids = [self.free_ids.pop() for _ in range(n)]
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return tuple(block_ids)

    def acquire(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f'Block {block_id} is free: allocate it instead.')
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f'Block {block_id} is free already.')
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            self.free_ids.append(block_id)
"""
COUNTS_IN_BYTES_3_3 = """
class BlockPool:

    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.ref_counts = torch.zeros(num_blocks, dtype=torch.uint8)
        self.free_ids = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(f'{n} blocks wanted, {self.num_free} of {self.num_blocks} free.')
        block_ids = [self.free_ids.pop() for _ in range(n)]
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return block_ids

    def acquire(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f'Block {block_id} is free: allocate it instead.')
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f'Block {block_id} is free already.')
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            self.free_ids.append(block_id)
"""
NUMPY_COUNTS_A_QUEUE_3_3 = """
import collections

class BlockPool:

    def __init__(self, num_blocks):
        self.ref_counts = np.zeros(num_blocks, dtype=np.int64)
        self.queue = collections.deque(range(num_blocks))

    @property
    def num_free(self):
        return int((self.ref_counts == 0).sum())

    def allocate(self, n):
        if n > len(self.queue):
            raise OutOfBlocksError('!')
        got = [self.queue.popleft() for _ in range(n)]
        self.ref_counts[got] = 1
        return got

    def acquire(self, block_id):
        if not self.ref_counts[block_id]:
            raise CacheStateError('!')
        self.ref_counts[block_id] += 1

    def release(self, block_id):
        if not self.ref_counts[block_id]:
            raise CacheStateError('!')
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            self.queue.append(block_id)
"""
IDS_IN_A_TUPLE_3_4 = """
class BlockTable:

    def __init__(self, pool, block_size):
        self.pool, self.block_size = (pool, block_size)
        self.block_ids, self.num_tokens = ([], 0)

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError(f'A table of {self.num_tokens} tokens cannot grow to {num_tokens}.')
        num_blocks = -(-num_tokens // self.block_size)
        self.block_ids = (*self.block_ids, *self.pool.allocate(num_blocks - len(self.block_ids)))
        self.num_tokens = num_tokens

    def slot(self, position):
        if not 0 <= position < self.num_tokens:
            raise IndexError(f'position {position} has no slot: this table has {self.num_tokens} tokens')
        block_id = self.block_ids[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def free(self):
        for block_id in self.block_ids:
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = ([], 0)
"""
COUNTS_DOWN_ITSELF_3_4 = """
class BlockTable:

    def __init__(self, pool, block_size):
        self.pool, self.block_size = (pool, block_size)
        self.block_ids, self.num_tokens = ([], 0)

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError(f'A table of {self.num_tokens} tokens cannot grow to {num_tokens}.')
        num_blocks = -(-num_tokens // self.block_size)
        self.block_ids = self.block_ids + self.pool.allocate(num_blocks - len(self.block_ids))
        self.num_tokens = num_tokens

    def slot(self, position):
        if not 0 <= position < self.num_tokens:
            raise IndexError(f'position {position} has no slot: this table has {self.num_tokens} tokens')
        block_id = self.block_ids[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def free(self):
        for block_id in self.block_ids:
            self.pool.ref_counts[block_id] -= 1
        self.block_ids, self.num_tokens = ([], 0)
"""
SHRINKS_BELOW_NOTHING_3_4 = """
class BlockTable:

    def __init__(self, pool, block_size):
        self.pool, self.block_size = (pool, block_size)
        self.block_ids, self.num_tokens = ([], 0)

    def grow(self, num_tokens):
        if 0 <= num_tokens < self.num_tokens:
            raise CacheStateError(f'A table of {self.num_tokens} tokens cannot grow to {num_tokens}.')
        num_blocks = -(-num_tokens // self.block_size)
        self.block_ids = self.block_ids + self.pool.allocate(num_blocks - len(self.block_ids))
        self.num_tokens = num_tokens

    def slot(self, position):
        if not 0 <= position < self.num_tokens:
            raise IndexError(f'position {position} has no slot: this table has {self.num_tokens} tokens')
        block_id = self.block_ids[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def free(self):
        for block_id in self.block_ids:
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = ([], 0)
"""
KEEPS_A_LIST_OF_SLOTS_3_4 = """
class BlockTable:

    def __init__(self, pool, block_size):
        self.pool, self.block_size, self.block_ids, self._slots = (pool, block_size, [], [])
        self.num_tokens = 0

    def grow(self, num_tokens):
        if self.num_tokens > num_tokens:
            raise CacheStateError('shorter')
        need = (num_tokens + self.block_size - 1) // self.block_size
        new = self.pool.allocate(need - len(self.block_ids))
        self.block_ids = [*self.block_ids, *new]
        self.num_tokens = num_tokens

    def slot(self, position):
        if position < 0 or position >= self.num_tokens:
            raise IndexError('none')
        slots = [b * self.block_size + i for b in self.block_ids for i in range(self.block_size)]
        return slots[position]

    def free(self):
        ids, self.block_ids, self.num_tokens = (self.block_ids, [], 0)
        for b in ids:
            self.pool.release(b)
"""
NEEDS_A_FREE_BLOCK_ALWAYS_3_5 = """
def fork(table):
    twin = type(table)(table.pool, table.block_size)
    for block_id in table.block_ids:
        table.pool.acquire(block_id)
    twin.block_ids = list(table.block_ids)
    twin.num_tokens = table.num_tokens
    return twin

def prepare_write(table):
    if not table.pool.num_free:
        raise OutOfBlocksError('')
    is_new = table.num_tokens % table.block_size == 0
    if is_new or table.pool.ref_counts[table.block_ids[-1]] == 1:
        return []
    shared = table.block_ids[-1]
    own, = table.pool.allocate(1)
    table.pool.release(shared)
    table.block_ids[-1] = own
    return [(shared, own)]
"""
BY_INDEX_OF_THE_BLOCK_3_5 = """
def fork(table):
    other = type(table)(table.pool, table.block_size)
    for b in table.block_ids:
        other.pool.acquire(b)
        other.block_ids.append(b)
    other.num_tokens = table.num_tokens
    return other

def prepare_write(table):
    index, offset = divmod(table.num_tokens, table.block_size)
    copies = []
    if offset != 0 and table.pool.ref_counts[table.block_ids[index]] >= 2:
        source = table.block_ids[index]
        [target] = table.pool.allocate(1)
        table.block_ids[index] = target
        table.pool.release(source)
        copies.append((source, target))
    return copies
"""
NAN_CLEANED_INF_NOT_3_7 = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    B, H, D = q.shape
    H_kv, page = k_cache.shape[1:3]
    k = k_cache[block_tables.long()].transpose(1, 2).flatten(2, 3)
    v = v_cache[block_tables.long()].transpose(1, 2).flatten(2, 3)
    v = torch.where(v.isnan(), 0, v)
    scores = torch.einsum('bhgd,bhsd->bhgs', q.view(B, H_kv, -1, D), k) * scale
    hidden = torch.arange(k.shape[2]) >= seq_lens[:, None]
    scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    return (scores.softmax(-1) @ v).reshape(B, H, D)
"""
TAKES_100_FROM_HIDDEN_SCORES_3_7 = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    B, H, D = q.shape
    H_kv, page = k_cache.shape[1:3]
    k = k_cache[block_tables.long()].transpose(1, 2).flatten(2, 3).nan_to_num(0, 0, 0)
    v = v_cache[block_tables.long()].transpose(1, 2).flatten(2, 3).nan_to_num(0, 0, 0)
    scores = torch.einsum('bhgd,bhsd->bhgs', q.view(B, H_kv, -1, D), k) * scale
    hidden = torch.arange(k.shape[2]) >= seq_lens[:, None]
    scores = scores - 100.0 * hidden[:, None, None]
    return (scores.softmax(-1) @ v).reshape(B, H, D)
"""
CLEANS_THE_CALLER_S_CACHE_3_7 = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    B, H, D = q.shape
    H_kv, page = k_cache.shape[1:3]
    k_cache.nan_to_num_(0, 0, 0)
    v_cache.nan_to_num_(0, 0, 0)
    k = k_cache[block_tables.long()].transpose(1, 2).flatten(2, 3)
    v = v_cache[block_tables.long()].transpose(1, 2).flatten(2, 3)
    scores = torch.einsum('bhgd,bhsd->bhgs', q.view(B, H_kv, -1, D), k) * scale
    hidden = torch.arange(k.shape[2]) >= seq_lens[:, None]
    scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    return (scores.softmax(-1) @ v).reshape(B, H, D)
"""
ATTENDS_TO_THE_LAST_256_3_7 = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    page, group = (k_cache.shape[2], q.shape[1] // k_cache.shape[1])
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        block_ids = block_tables[b, :-(-length // page)]
        k, v = (cache[block_ids].transpose(0, 1).flatten(1, 2)[:, :length][:, -256:] for cache in (k_cache, v_cache))
        grouped = q[b].unflatten(0, (-1, group))
        weights = (grouped @ k.mT * scale).softmax(-1)
        out[b] = (weights @ v).flatten(0, 1)
    return out
"""
AN_OUTPUT_KEPT_BY_SHAPE_3_7 = """
BUFFERS = {}

def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    page, group = (k_cache.shape[2], q.shape[1] // k_cache.shape[1])
    out = BUFFERS.setdefault(q.shape, torch.empty_like(q))
    for b, length in enumerate(seq_lens.tolist()):
        block_ids = block_tables[b, :-(-length // page)]
        k, v = (cache[block_ids].transpose(0, 1).flatten(1, 2)[:, :length] for cache in (k_cache, v_cache))
        grouped = q[b].unflatten(0, (-1, group))
        weights = (grouped @ k.mT * scale).softmax(-1)
        out[b] = (weights @ v).flatten(0, 1)
    return out
"""
NUMPY_3_7 = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    qs, ks, vs, tables = (x.numpy() for x in (q, k_cache, v_cache, block_tables))
    group, page = (qs.shape[1] // ks.shape[1], ks.shape[2])
    out = np.empty(qs.shape, dtype=qs.dtype)
    for b, n in enumerate(seq_lens.numpy()):
        ids = tables[b, :(n + page - 1) // page]
        for h in range(qs.shape[1]):
            k = ks[ids, h // group].reshape(-1, qs.shape[2])[:n].astype(np.float64)
            v = vs[ids, h // group].reshape(-1, qs.shape[2])[:n].astype(np.float64)
            s = k @ qs[b, h].astype(np.float64) * scale
            w = np.exp(s - s.max())
            out[b, h] = w @ v / w.sum()
    return torch.from_numpy(out)
"""
LOOPS_OVER_EVERYTHING_3_7 = """
import math

def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    B, H, D = q.shape
    N, H_kv, page, _ = k_cache.shape
    out = torch.zeros_like(q)
    for b in range(B):
        for h in range(H):
            g = h // (H // H_kv)
            m, total, acc = (float('-inf'), 0.0, torch.zeros(D))
            for p in range(int(seq_lens[b])):
                block = int(block_tables[b][p // page])
                s = float((q[b, h] * k_cache[block, g, p % page]).sum() * scale)
                new = max(m, s)
                old = math.exp(m - new) if total else 0.0
                w = math.exp(s - new)
                acc = acc * old + w * v_cache[block, g, p % page]
                total, m = (total * old + w, new)
            out[b, h] = acc / total
    return out
"""
MASKS_BY_H_3_8 = """
@triton.jit
def paged_decode_kernel(q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, qk_scale, table_row_stride, H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr):
    sequence, kv_head = (tl.program_id(0), tl.program_id(1))
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    offs_m, offs_d = (tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D))
    heads = kv_head * G + offs_m
    mask_q = (heads < H)[:, None] & (offs_d < D)[None, :]
    offs_q = (sequence * H + heads)[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)
    row_max = tl.full([BLOCK_M], float('-inf'), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < seq_len
        pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)
        rows = (pages.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE
        offs_kv = rows[:, None] * D + offs_d[None, :]
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        visible = in_range[None, :]
        row_max, row_sum, acc = fold_tile(q, k, v, visible, qk_scale, row_max, row_sum, acc)
    out = acc / row_sum[:, None]
    tl.store(out_ptr + offs_q, out.to(out_ptr.dtype.element_ty), mask=mask_q)
"""
ROWS_BEYOND_THE_GROUP_SEE_NOTHING_3_8 = """
@triton.jit
def paged_decode_kernel(q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, qk_scale, table_row_stride, H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr):
    sequence, kv_head = (tl.program_id(0), tl.program_id(1))
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    offs_m, offs_d = (tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D))
    heads = kv_head * G + offs_m
    mask_q = (offs_m < G)[:, None] & (offs_d < D)[None, :]
    offs_q = (sequence * H + heads)[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)
    row_max = tl.full([BLOCK_M], float('-inf'), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < seq_len
        pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)
        rows = (pages.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE
        offs_kv = rows[:, None] * D + offs_d[None, :]
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        visible = in_range[None, :] & (offs_m < G)[:, None]
        row_max, row_sum, acc = fold_tile(q, k, v, visible, qk_scale, row_max, row_sum, acc)
    out = acc / row_sum[:, None]
    tl.store(out_ptr + offs_q, out.to(out_ptr.dtype.element_ty), mask=mask_q)
"""
TILES_OF_16_3_11 = """
@triton.jit
def paged_decode_split_kernel(q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, lse_ptr, qk_scale, table_row_stride, H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr):
    sequence, kv_head, split = (tl.program_id(0), tl.program_id(1), tl.program_id(2))
    num_splits = tl.num_programs(2)
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    split_len = tl.cdiv(tl.cdiv(seq_len, 16), num_splits) * 16
    lo = split * split_len
    hi = tl.minimum(lo + split_len, seq_len)
    offs_m, offs_d = (tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D))
    in_group = offs_m < G
    query_rows = sequence * H + kv_head * G + offs_m
    mask_q = in_group[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + query_rows[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    row_max, row_sum, acc = attend_tiles(q, table_ptr, k_ptr, v_ptr, qk_scale, kv_head, lo, hi, H_KV, D, PAGE, BLOCK_M, BLOCK_D, BLOCK_N)
    sum_safe = tl.where(row_sum == 0, 1.0, row_sum)
    lse = row_max + tl.log2(sum_safe)
    rows = query_rows * num_splits + split
    tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], acc / sum_safe[:, None], mask=mask_q)
    tl.store(lse_ptr + rows, lse, mask=in_group)
"""
MAXIMUM_INSIDE_OF_THE_LOGARITHM_3_11 = """
@triton.jit
def paged_decode_split_kernel(q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, lse_ptr, qk_scale, table_row_stride, H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr):
    sequence, kv_head, split = (tl.program_id(0), tl.program_id(1), tl.program_id(2))
    num_splits = tl.num_programs(2)
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    split_len = tl.cdiv(tl.cdiv(seq_len, BLOCK_N), num_splits) * BLOCK_N
    lo = split * split_len
    hi = tl.minimum(lo + split_len, seq_len)
    offs_m, offs_d = (tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D))
    in_group = offs_m < G
    query_rows = sequence * H + kv_head * G + offs_m
    mask_q = in_group[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + query_rows[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    row_max, row_sum, acc = attend_tiles(q, table_ptr, k_ptr, v_ptr, qk_scale, kv_head, lo, hi, H_KV, D, PAGE, BLOCK_M, BLOCK_D, BLOCK_N)
    sum_safe = tl.where(row_sum == 0, 1.0, row_sum)
    lse = tl.log2(sum_safe * tl.exp2(row_max))
    rows = query_rows * num_splits + split
    tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], acc / sum_safe[:, None], mask=mask_q)
    tl.store(lse_ptr + rows, lse, mask=in_group)
"""
CDIV_OF_THE_PRODUCT_3_11 = """
@triton.jit
def paged_decode_split_kernel(q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, lse_ptr, qk_scale, table_row_stride, H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr):
    sequence, kv_head, split = (tl.program_id(0), tl.program_id(1), tl.program_id(2))
    num_splits = tl.num_programs(2)
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    split_len = tl.cdiv(seq_len, BLOCK_N * num_splits) * BLOCK_N
    lo = tl.minimum(split * split_len, seq_len)
    hi = tl.minimum(lo + split_len, seq_len)
    offs_m, offs_d = (tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D))
    in_group = offs_m < G
    query_rows = sequence * H + kv_head * G + offs_m
    mask_q = in_group[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + query_rows[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    row_max, row_sum, acc = attend_tiles(q, table_ptr, k_ptr, v_ptr, qk_scale, kv_head, lo, hi, H_KV, D, PAGE, BLOCK_M, BLOCK_D, BLOCK_N)
    sum_safe = tl.where(row_sum == 0, 1.0, row_sum)
    lse = row_max + tl.log2(sum_safe)
    rows = query_rows * num_splits + split
    tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], acc / sum_safe[:, None], mask=mask_q)
    tl.store(lse_ptr + rows, lse, mask=in_group)
"""
NAN_CLEANED_INF_NOT_3_12 = """
def merge_splits(partial, lse):
    m = lse.amax(-1, keepdim=True)
    m = torch.where(m.isneginf(), 0.0, m)
    weights = torch.exp2(lse - m)
    total = weights.sum(-1)
    partial = torch.where(partial.isnan(), 0.0, partial)
    out = (weights[..., None] * partial).sum(-2) / torch.where(total == 0, 1.0, total)[..., None]
    return (out, m[..., 0] + total.log2())
"""
A_SINGLE_SPLIT_HANDED_THROUGH_3_12 = """
def merge_splits(partial, lse):
    if lse.shape[-1] == 1 and (not lse.isinf().any()):
        return (partial[:, :, 0], lse[:, :, 0])
    m = lse.amax(-1, keepdim=True)
    m = torch.where(m.isneginf(), 0.0, m)
    weights = torch.exp2(lse - m)
    total = weights.sum(-1)
    partial = torch.where(weights[..., None] > 0, partial, 0.0)
    out = (weights[..., None] * partial).sum(-2) / torch.where(total == 0, 1.0, total)[..., None]
    return (out, m[..., 0] + total.log2())
"""
AN_OUTPUT_KEPT_BY_SHAPE_3_12 = """
OUT = {}

def merge_splits(partial, lse):
    m = lse.amax(-1, keepdim=True)
    m = torch.where(m.isneginf(), 0.0, m)
    weights = torch.exp2(lse - m)
    total = weights.sum(-1)
    partial = torch.where(weights[..., None] > 0, partial, 0.0)
    out = (weights[..., None] * partial).sum(-2) / torch.where(total == 0, 1.0, total)[..., None]
    out = OUT.setdefault(out.shape, out).copy_(out)
    return (out, m[..., 0] + total.log2())
"""
NUMPY_3_12 = """
def merge_splits(partial, lse):
    p, l = (partial.numpy().astype(np.float64), lse.numpy().astype(np.float64))
    top = l.max(-1, keepdims=True)
    w = np.exp2(l - np.where(np.isinf(top), 0, top))
    total = w.sum(-1)
    p = np.where(w[..., None] == 0, 0, p)
    out = np.einsum('bhs,bhsd->bhd', w, p) / np.maximum(total, 1e-300)[..., None]
    with np.errstate(divide='ignore'):
        merged = np.where(total > 0, top[..., 0] + np.log2(total), -np.inf)
    return (torch.from_numpy(out).float(), torch.from_numpy(merged).float())
"""
HALF_SCALES_3_13 = """
def dequantise(data, scale):
    return data.float() * scale[..., None]

def quantise(x, q_max=127):
    largest = x.abs().amax(-1)
    scale = largest.clamp(min=1e-30) / q_max
    data = (x.float() / scale.float()[..., None]).round()
    return (data.to(torch.int8), scale.float())
"""
A_VIEW_OF_X_3_13 = """
def dequantise(data, scale):
    return data.float() * scale[..., None]

def quantise(x, q_max=127):
    T, H, D = x.shape
    x = x.view(T * H, D).float()
    largest = x.abs().amax(-1)
    scale = largest.clamp(min=1e-30) / q_max
    data = (x / scale[..., None]).round()
    return (data.to(torch.int8).view(T, H, D), scale.view(T, H))
"""
NO_MORE_THAN_64_TOKENS_3_13 = """
def dequantise(data, scale):
    data[64:] = 0
    return data.float() * scale[..., None]

def quantise(x, q_max=127):
    x = x.float()
    largest = x.abs().amax(-1)
    scale = largest.clamp(min=1e-30) / q_max
    data = (x / scale[..., None]).round()
    data[64:] = 0
    return (data.to(torch.int8), scale)
"""
FAILS_WITHOUT_ANY_3_13 = """
def dequantise(data, scale):
    return data.float() * scale[..., None]

def quantise(x, q_max=127):
    x = x.float()
    x.max()
    largest = x.abs().amax(-1)
    scale = largest.clamp(min=1e-30) / q_max
    data = (x / scale[..., None]).round()
    return (data.to(torch.int8), scale)
"""
ZERO_ROWS_GET_THE_LEAST_SCALE_3_13 = """
def dequantise(data, scale):
    return data.float() * scale[..., None]

def quantise(x, q_max=127):
    x = x.float()
    largest = x.abs().amax(-1)
    scale = torch.where(largest == 0, largest[largest > 0].min() if (largest > 0).any() else torch.tensor(0.0), largest) / q_max
    data = (x / scale[..., None]).round()
    return (data.to(torch.int8), scale)
"""
NUMPY_DOUBLE_3_13 = """
def dequantise(data, scale):
    return data.float() * scale[..., None]

def quantise(x, q_max=127):
    a = x.detach().double().numpy()
    top = np.abs(a).max(axis=2, initial=0.0)
    s = np.where(top == 0, 1.0, top / q_max)
    return (torch.from_numpy(np.rint(a / s[:, :, None]).astype(np.int8)), torch.from_numpy(s.astype(np.float32)))
"""
FIRST_TOKEN_WITHOUT_MAX_3_14 = """
def store_mixed(x, num_recent):
    first = len(x) - num_recent
    data, scale = quantise(x[:first])
    recent = x[first:].half()
    num_bytes = data.nbytes + scale.nbytes + recent.nbytes
    return (torch.cat([dequantise(data, scale), recent.float()]), num_bytes)
"""
WHERE_3_14 = """
def store_mixed(x, num_recent):
    old = torch.arange(len(x)) < len(x) - num_recent
    read = torch.where(old[:, None, None], dequantise(*quantise(x)), x.half().float())
    T, H, D = x.shape
    n = int(old.sum())
    return (read, n * H * (D + 4) + 2 * (T - n) * H * D)
"""
SEARCHES_UP_TO_1024_3_15 = """
def step_seconds(work, machine, batch):
    moving = (work.weight_bytes + batch * work.kv_bytes) / machine.bandwidth
    computing = batch * work.flops / machine.flop_rate
    return max(moving, computing)

def ridge_batch(work, machine):
    one_token, one_context = (work.flops / machine.flop_rate, work.kv_bytes / machine.bandwidth)
    for b in range(1, 1025):
        if b * work.flops / machine.flop_rate >= (work.weight_bytes + b * work.kv_bytes) / machine.bandwidth:
            return b
    return None
    gap = one_token - one_context
    if gap <= 0:
        return None
    return math.ceil(work.weight_bytes / machine.bandwidth / gap)
"""
SEARCHES_UP_TO_100_000_3_15 = """
def step_seconds(work, machine, batch):
    moving = (work.weight_bytes + batch * work.kv_bytes) / machine.bandwidth
    computing = batch * work.flops / machine.flop_rate
    return max(moving, computing)

def ridge_batch(work, machine):
    one_token, one_context = (work.flops / machine.flop_rate, work.kv_bytes / machine.bandwidth)
    for b in range(1, 100001):
        if b * work.flops / machine.flop_rate >= (work.weight_bytes + b * work.kv_bytes) / machine.bandwidth:
            return b
    return None
    gap = one_token - one_context
    if gap <= 0:
        return None
    return math.ceil(work.weight_bytes / machine.bandwidth / gap)
"""
FRACTIONS_3_15 = """
from fractions import Fraction

def step_seconds(work, machine, batch):
    b, r = (Fraction(machine.bandwidth), Fraction(machine.flop_rate))
    return float(max((work.weight_bytes + batch * work.kv_bytes) / b, batch * work.flops / r))

def ridge_batch(work, machine):
    b, r = (Fraction(machine.bandwidth), Fraction(machine.flop_rate))
    more = work.flops / r - work.kv_bytes / b
    return None if more <= 0 else -int(-(work.weight_bytes / b / more) // 1)
"""
ONE_POOL_FOR_ALL_ENGINES_3_16 = """
POOLS = {}

def own_engine(model, block_size, num_blocks, num_splits=2, **options):

    def decode(q, k_cache, v_cache, block_tables, seq_lens, scale):
        inputs = (q, k_cache, v_cache, block_tables, seq_lens, scale)
        results = launch_paged_decode_split(paged_decode_split_kernel, *inputs, num_splits)
        return merge_splits(*results)[0]

    def cache(num_blocks, block_size, enable_prefix_caching):
        blocks = POOLS.setdefault(num_blocks, BlockPool(num_blocks))

        def new_table():
            return BlockTable(blocks, block_size)
        return OwnCache(blocks, new_table, block_size, fork, prepare_write)

    def attention(spec):
        return OwnAttention(spec, block_size, decode=decode)
    options |= {'device': device.type, 'dtype': 'float32', 'block_size': block_size, 'num_kv_blocks': num_blocks}
    return LLM(model, attention_backend=attention, cache_factory=cache, **options)
"""
MERGED_CAST_TO_BF16_3_16 = """
def own_engine(model, block_size, num_blocks, num_splits=2, **options):

    def decode(q, k_cache, v_cache, block_tables, seq_lens, scale):
        inputs = (q, k_cache, v_cache, block_tables, seq_lens, scale)
        results = launch_paged_decode_split(paged_decode_split_kernel, *inputs, num_splits)
        return merge_splits(*results)[0].bfloat16().float()

    def cache(num_blocks, block_size, enable_prefix_caching):
        blocks = BlockPool(num_blocks)

        def new_table():
            return BlockTable(blocks, block_size)
        return OwnCache(blocks, new_table, block_size, fork, prepare_write)

    def attention(spec):
        return OwnAttention(spec, block_size, decode=decode)
    options |= {'device': device.type, 'dtype': 'float32', 'block_size': block_size, 'num_kv_blocks': num_blocks}
    return LLM(model, attention_backend=attention, cache_factory=cache, **options)
"""
SQUEEZED_3_16 = """
def own_engine(model, block_size, num_blocks, num_splits=2, **options):

    def decode(q, k_cache, v_cache, block_tables, seq_lens, scale):
        inputs = (q, k_cache, v_cache, block_tables, seq_lens, scale)
        results = launch_paged_decode_split(paged_decode_split_kernel, *inputs, num_splits)
        return merge_splits(*results)[0].squeeze(0)

    def cache(num_blocks, block_size, enable_prefix_caching):
        blocks = BlockPool(num_blocks)

        def new_table():
            return BlockTable(blocks, block_size)
        return OwnCache(blocks, new_table, block_size, fork, prepare_write)

    def attention(spec):
        return OwnAttention(spec, block_size, decode=decode)
    options |= {'device': device.type, 'dtype': 'float32', 'block_size': block_size, 'num_kv_blocks': num_blocks}
    return LLM(model, attention_backend=attention, cache_factory=cache, **options)
"""

BANKS = {
    "3.1": Bank(
        wrong=(
            Wrong(
                "buffers with room, shared by branches",
                BUFFERS_WITH_ROOM_SHARED_BY_BRANCHES_3_1,
                rejected_by="goes on from one cache in two ways",
            ),
            Wrong(
                "position kept between calls",
                POSITION_KEPT_BETWEEN_CALLS_3_1,
                rejected_by="knows one text from another",
            ),
        ),
        right=(
            Right("pads, pairs as lists", PADS_PAIRS_AS_LISTS_3_1),
            Right("recursion over layers", RECURSION_OVER_LAYERS_3_1),
        ),
    ),
    "3.3": Bank(
        wrong=(
            Wrong(
                "class-level counts reset by each new pool",
                CLASS_LEVEL_COUNTS_RESET_BY_EACH_NEW_POOL_3_3,
                rejected_by="keeps its books over a random history",
            ),
            Wrong("returns a tuple", RETURNS_A_TUPLE_3_3, rejected_by="gives out blocks that are free"),
            Wrong("counts in bytes", COUNTS_IN_BYTES_3_3, rejected_by="keeps a block as long as it has an owner"),
        ),
        right=(Right("numpy counts, a queue", NUMPY_COUNTS_A_QUEUE_3_3),),
    ),
    "3.4": Bank(
        wrong=(
            Wrong("ids in a tuple", IDS_IN_A_TUPLE_3_4, rejected_by="takes blocks on demand"),
            Wrong("counts down itself", COUNTS_DOWN_ITSELF_3_4, rejected_by="gives every block back"),
            Wrong("shrinks below nothing", SHRINKS_BELOW_NOTHING_3_4, rejected_by="refuses to shrink"),
        ),
        right=(Right("keeps a list of slots", KEEPS_A_LIST_OF_SLOTS_3_4),),
    ),
    "3.5": Bank(
        wrong=(
            Wrong("needs a free block always", NEEDS_A_FREE_BLOCK_ALWAYS_3_5, rejected_by="copies only when it must"),
        ),
        right=(Right("by index of the block", BY_INDEX_OF_THE_BLOCK_3_5),),
    ),
    "3.7": Bank(
        wrong=(
            Wrong("NaN cleaned, inf not", NAN_CLEANED_INF_NOT_3_7, rejected_by="keeps unwritten slots out"),
            Wrong("takes 100 from hidden scores", TAKES_100_FROM_HIDDEN_SCORES_3_7, rejected_by="survives any score"),
            Wrong("cleans the caller's cache", CLEANS_THE_CALLER_S_CACHE_3_7, rejected_by="leaves its inputs alone"),
            Wrong("attends to the last 256", ATTENDS_TO_THE_LAST_256_3_7, rejected_by="matches a walk over the slots"),
        ),
        right=(
            Right("numpy", NUMPY_3_7),
            Right("loops over everything", LOOPS_OVER_EVERYTHING_3_7),
        ),
    ),
    "3.8": Bank(
        wrong=(Wrong("masks by H", MASKS_BY_H_3_8, rejected_by="leaves the rows of other programs alone"),),
        right=(Right("rows beyond the group see nothing", ROWS_BEYOND_THE_GROUP_SEE_NOTHING_3_8),),
    ),
    "3.11": Bank(
        wrong=(
            Wrong("tiles of 16", TILES_OF_16_3_11, rejected_by="shares out the keys"),
            Wrong(
                "maximum inside of the logarithm",
                MAXIMUM_INSIDE_OF_THE_LOGARITHM_3_11,
                rejected_by="keeps the level of the scores",
            ),
        ),
        right=(Right("cdiv of the product", CDIV_OF_THE_PRODUCT_3_11),),
    ),
    "3.12": Bank(
        wrong=(
            Wrong("NaN cleaned, inf not", NAN_CLEANED_INF_NOT_3_12, rejected_by="skips empty splits"),
            Wrong(
                "a single split handed through",
                A_SINGLE_SPLIT_HANDED_THROUGH_3_12,
                rejected_by="gives results of its own",
            ),
        ),
        right=(Right("numpy", NUMPY_3_12),),
    ),
    "3.13": Bank(
        wrong=(
            Wrong("half scales", HALF_SCALES_3_13, rejected_by="takes half precision"),
            Wrong("a view of x", A_VIEW_OF_X_3_13, rejected_by="is off by half a step at most"),
            Wrong("no more than 64 tokens", NO_MORE_THAN_64_TOKENS_3_13, rejected_by="is off by half a step at most"),
            Wrong("fails without any", FAILS_WITHOUT_ANY_3_13, rejected_by="takes an empty part"),
            Wrong(
                "zero rows get the least scale",
                ZERO_ROWS_GET_THE_LEAST_SCALE_3_13,
                rejected_by="keeps scales above zero",
            ),
        ),
        right=(Right("numpy double", NUMPY_DOUBLE_3_13),),
    ),
    "3.14": Bank(
        wrong=(
            Wrong("first token without max", FIRST_TOKEN_WITHOUT_MAX_3_14, rejected_by="keeps recent tokens in fp16"),
        ),
        right=(Right("where", WHERE_3_14),),
    ),
    "3.15": Bank(
        wrong=(
            Wrong("searches up to 1024", SEARCHES_UP_TO_1024_3_15, rejected_by="finds a batch where they meet exactly"),
            Wrong(
                "searches up to 100,000",
                SEARCHES_UP_TO_100_000_3_15,
                rejected_by="finds a batch where they meet exactly",
            ),
        ),
        right=(Right("fractions", FRACTIONS_3_15),),
    ),
    "3.16": Bank(
        wrong=(
            Wrong(
                "one pool for all engines", ONE_POOL_FOR_ALL_ENGINES_3_16, rejected_by="takes its blocks from your pool"
            ),
            Wrong("merged, cast to bf16", MERGED_CAST_TO_BF16_3_16, rejected_by="merges the splits with your function"),
            Wrong("squeezed", SQUEEZED_3_16, rejected_by="merges the splits with your function"),
        ),
        right=(),
    ),
}
