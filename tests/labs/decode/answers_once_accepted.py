"""Wrong answers that an earlier check accepted, and right ones that it refused."""

from tests.labs.decode.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = {
    "3.1": Bank(
        wrong=(
            Wrong(
                "cache cut at 32 tokens",
                """
def decode_step(model, new_ids, cache):
    num_cached = cache[0][0].shape[1]
    positions = torch.arange(num_cached, num_cached + len(new_ids))
    x, grown = model.embed(new_ids), []
    for layer, (old_k, old_v) in enumerate(cache):
        q, new_k, new_v = model.project(layer, x, positions)
        k, v = torch.cat([old_k, new_k], dim=1)[:, -32:], torch.cat([old_v, new_v], dim=1)[:, -32:]
        grown.append((k, v))
        x = model.finish(layer, x, model.attend(q, k, v))
    return model.logits(x[-1:])[0], grown
""",
                "caches the right keys and values",
            ),
            Wrong(
                "the position from a counter on the model",
                """
def decode_step(model, new_ids, cache):
    num_cached = getattr(model, "seen", 0) if cache[0][0].shape[1] else 0
    model.seen = num_cached + len(new_ids)
    positions = torch.arange(num_cached, num_cached + len(new_ids))
    x, grown = model.embed(new_ids), []
    for layer, (old_k, old_v) in enumerate(cache):
        q, new_k, new_v = model.project(layer, x, positions)
        k, v = torch.cat([old_k, new_k], dim=1), torch.cat([old_v, new_v], dim=1)
        grown.append((k, v))
        x = model.finish(layer, x, model.attend(q, k, v))
    return model.logits(x[-1:])[0], grown
""",
                "knows one text from another",
            ),
            Wrong(
                "at most 128 positions",
                {1: "torch.arange(num_cached, num_cached + len(new_ids)).clamp(max=127)"},
                "caches the right keys and values",
            ),
        ),
    ),
    "3.3": Bank(
        wrong=(
            Wrong(
                "books shared by all pools",
                """
class BlockPool:
    owners, free = {}, set()

    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.owners.clear()
        self.free.clear()
        self.free.update(range(num_blocks))

    @property
    def num_free(self):
        return len(self.free)

    def allocate(self, n):
        if n > len(self.free):
            raise OutOfBlocksError(f"{n} blocks wanted, {len(self.free)} free.")
        block_ids = [self.free.pop() for _ in range(n)]
        self.owners.update({block_id: 1 for block_id in block_ids})
        return block_ids

    def acquire(self, block_id):
        if block_id not in self.owners:
            raise CacheStateError(f"Block {block_id} is free.")
        self.owners[block_id] += 1

    def release(self, block_id):
        if block_id not in self.owners:
            raise CacheStateError(f"Block {block_id} is free already.")
        self.owners[block_id] -= 1
        if not self.owners[block_id]:
            del self.owners[block_id]
            self.free.add(block_id)
""",
                "gives out blocks that are free",
            ),
            Wrong(
                "at most 256 blocks",
                """
class BlockPool:
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.free_ids = list(range(min(num_blocks, 256) - 1, -1, -1))

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(f"{n} blocks wanted, {self.num_free} of {self.num_blocks} free.")
        block_ids = [self.free_ids.pop() for _ in range(n)]
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return block_ids

    def acquire(self, block_id):
        if not self.ref_counts[block_id]:
            raise CacheStateError(f"Block {block_id} is free: allocate it instead.")
        self.ref_counts[block_id] = self.ref_counts[block_id] + 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f"Block {block_id} is free already.")
        self.ref_counts[block_id] = self.ref_counts[block_id] - 1
        if self.ref_counts[block_id] == 0:
            self.free_ids.append(block_id)
""",
                "gives out blocks that are free",
            ),
        ),
        right=(
            Right(
                "owners in a dictionary",
                """
class BlockPool:
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.ref_counts = self.owners = {}
        self.free = set(range(num_blocks))

    @property
    def num_free(self):
        return len(self.free)

    def allocate(self, n):
        if n > len(self.free):
            raise OutOfBlocksError(f"{n} blocks wanted, {len(self.free)} free.")
        block_ids = [self.free.pop() for _ in range(n)]
        self.owners.update({block_id: 1 for block_id in block_ids})
        return block_ids

    def acquire(self, block_id):
        if block_id not in self.owners:
            raise CacheStateError(f"Block {block_id} is free.")
        self.owners[block_id] += 1

    def release(self, block_id):
        if block_id not in self.owners:
            raise CacheStateError(f"Block {block_id} is free already.")
        self.owners[block_id] -= 1
        if not self.owners[block_id]:
            del self.owners[block_id]
            self.free.add(block_id)
""",
            ),
            Right(
                "NumPy's integers",
                """
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
            raise OutOfBlocksError(f"{n} blocks wanted, {self.num_free} of {self.num_blocks} free.")
        block_ids = [self.free_ids.pop() for _ in range(n)]
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return [np.int64(i) for i in block_ids]

    def acquire(self, block_id):
        if not self.ref_counts[block_id]:
            raise CacheStateError(f"Block {block_id} is free: allocate it instead.")
        self.ref_counts[block_id] = self.ref_counts[block_id] + 1

    def release(self, block_id):
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f"Block {block_id} is free already.")
        self.ref_counts[block_id] = self.ref_counts[block_id] - 1
        if self.ref_counts[block_id] == 0:
            self.free_ids.append(block_id)
""",
            ),
        ),
    ),
    "3.4": Bank(
        wrong=(
            Wrong(
                "a position beyond the tokens gets a slot",
                """
class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids = []
        self.num_tokens = 0

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError(f"A table of {self.num_tokens} tokens cannot grow to {num_tokens}.")
        num_blocks = -(-num_tokens // self.block_size)
        num_missing = num_blocks - len(self.block_ids)
        self.block_ids += self.pool.allocate(num_missing)
        self.num_tokens = num_tokens

    def slot(self, position):
        if position >= len(self.block_ids) * self.block_size:
            raise IndexError(f"position {position} has no slot: this table has {self.num_tokens} tokens")
        block_id = self.block_ids[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def free(self):
        for block_id in self.block_ids:
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = [], 0
""",
                "has no slot for a position without a token",
            ),
            Wrong(
                "slots of a whole block",
                """
class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids = []
        self.num_tokens = 0

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError(f"A table of {self.num_tokens} tokens cannot grow to {num_tokens}.")
        num_blocks = -(-num_tokens // self.block_size)
        num_missing = num_blocks - len(self.block_ids)
        self.block_ids += self.pool.allocate(num_missing)
        self.num_tokens = num_tokens

    def slot(self, position):
        if not 0 <= position < len(self.block_ids) * self.block_size:
            raise IndexError(f"position {position} has no slot: this table has {self.num_tokens} tokens")
        block_id = self.block_ids[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def free(self):
        for block_id in self.block_ids:
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = [], 0
""",
                "has no slot for a position without a token",
            ),
            Wrong(
                "negative positions count from the end",
                """
class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids = []
        self.num_tokens = 0

    def grow(self, num_tokens):
        if num_tokens < self.num_tokens:
            raise CacheStateError(f"A table of {self.num_tokens} tokens cannot grow to {num_tokens}.")
        num_blocks = -(-num_tokens // self.block_size)
        num_missing = num_blocks - len(self.block_ids)
        self.block_ids += self.pool.allocate(num_missing)
        self.num_tokens = num_tokens

    def slot(self, position):
        if position >= self.num_tokens:
            raise IndexError(f"position {position} has no slot: this table has {self.num_tokens} tokens")
        block_id = self.block_ids[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def free(self):
        for block_id in self.block_ids:
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = [], 0
""",
                "has no slot for a position without a token",
            ),
            Wrong(
                "at most 16 blocks",
                {3: "self.block_ids[min(position // self.block_size, 15)]"},
                "finds the slot of a position",
            ),
        ),
    ),
    "3.7": Bank(
        wrong=(
            Wrong(
                "exp without the maximum",
                {5: "((s := (grouped @ k.mT * scale).exp()) / s.sum(-1, keepdim=True))"},
                "survives any score",
            ),
            Wrong(
                "reads 128 tokens",
                """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    def gather(cache, pages, length):
        return cache[pages].transpose(0, 1).flatten(1, 2)[:, :length]

    page, group = k_cache.shape[2], q.shape[1] // k_cache.shape[1]
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.clamp(max=128).tolist()):
        num_pages = -(-length // page)
        pages = block_tables[b, :num_pages]
        k, v = gather(k_cache, pages, length), gather(v_cache, pages, length)
        grouped = q[b].unflatten(0, (-1, group))
        weights = (grouped @ k.mT * scale).softmax(-1)
        out[b] = (weights @ v).flatten(0, 1)
    return out
""",
                "matches a walk over the slots",
            ),
        ),
    ),
    "3.8": Bank(
        wrong=(
            Wrong(
                "-1e4 for minus infinity",
                {8: "tl.where(in_range[None, :], scores, -1e4)"},
                "survives any level of scores",
            ),
            Wrong(
                "slots by a mask",
                {5: "(pages.to(tl.int64) * H_KV + kv_head) * PAGE + (positions & (PAGE - 1))"},
                "matches a loop over positions",
            ),
        ),
    ),
    "3.11": Bank(
        wrong=(
            Wrong(
                "at most 4 splits",
                {1: "tl.cdiv(tl.cdiv(seq_len, BLOCK_N), tl.minimum(num_splits, 4)) * BLOCK_N"},
                "shares out the keys",
            ),
        ),
    ),
    "3.5": Bank(
        wrong=(
            Wrong("blocks of four", {3: "table.num_tokens % 4 == 0"}, "copies a shared partial block"),
            Wrong(
                "looks at 32 blocks",
                """
def fork(table):
    twin = type(table)(table.pool, table.block_size)
    for block_id in table.block_ids[:10]:
        table.pool.acquire(block_id)
    twin.block_ids = list(table.block_ids)
    twin.num_tokens = table.num_tokens
    return twin


def prepare_write(table):
    if table.num_tokens % table.block_size == 0:
        return []
    shared = table.block_ids[-1]
    if table.pool.ref_counts[shared] == 1:
        return []
    (own,) = table.pool.allocate(1)
    table.pool.release(shared)
    table.block_ids[-1] = own
    return [(shared, own)]
""",
                "shares every block",
            ),
        ),
    ),
    "3.13": Bank(
        wrong=(
            Wrong("clamps at 1e-2", {2: "largest.clamp(min=1e-2) / q_max"}, "works for rows of any size"),
            Wrong("adds a little to the largest", {2: "(largest + 1e-5) / q_max"}, "works for rows of any size"),
            Wrong("clamps at 1e-6", {2: "largest.clamp(min=1e-6) / q_max"}, "works for rows of any size"),
            Wrong(
                "in half precision",
                {2: "(largest.clamp(min=1e-30) / q_max).half().float().clamp(min=1e-30)"},
                "works for rows of any size",
            ),
        ),
    ),
    "3.15": Bank(
        wrong=(
            Wrong(
                "ZeroDivisionError when both grow alike",
                """
def step_seconds(work, machine, batch):
    moving = (work.weight_bytes + batch * work.kv_bytes) / machine.bandwidth
    computing = batch * work.flops / machine.flop_rate
    return max(moving, computing)


def ridge_batch(work, machine):
    one_token, one_context = work.flops / machine.flop_rate, work.kv_bytes / machine.bandwidth
    gap = one_token - one_context
    if gap < 0:
        return None
    return math.ceil(work.weight_bytes / machine.bandwidth / gap)
""",
                "says None if both grow alike",
            ),
            Wrong(
                "the next whole number",
                {6: "int(work.weight_bytes / machine.bandwidth / gap) + 1"},
                "finds a batch where they meet exactly",
            ),
            Wrong(
                "rounds to the nearest",
                {6: "max(1, round(work.weight_bytes / machine.bandwidth / gap))"},
                "finds the batch where they meet",
            ),
        ),
        right=(Right("NumPy's ceil", {6: "np.ceil(work.weight_bytes / machine.bandwidth / gap)"}),),
    ),
}
BANKS = opened_all(BANKS)
