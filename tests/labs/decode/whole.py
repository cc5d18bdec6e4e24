"""Whole cells for answers of open exercises: a right one, with numbered parts that a wrong one replaces.

A part is written ⟦number:what is right⟧.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from twophase_labs.machine.exercise import Bank

PART = re.compile(r"⟦(\d+):(.*?)⟧", re.DOTALL)


def cell(template: str, fill: Mapping[int, str]) -> str:
    """The template with these parts replaced."""
    numbers = {int(part[1]) for part in PART.finditer(template)}
    if not fill.keys() <= numbers:
        raise ValueError(f"there is no part {sorted(fill.keys() - numbers)}")
    return PART.sub(lambda part: fill.get(int(part[1]), part[2]), template)


def opened(bank: Bank, template: str) -> Bank:
    """The bank with whole cells where it gives parts by number."""

    def whole(answer):
        return answer if isinstance(answer.fill, str) else replace(answer, fill=cell(template, answer.fill))

    return Bank(wrong=tuple(map(whole, bank.wrong)), right=tuple(map(whole, bank.right)))


DECODE_STEP = """
def decode_step(model, new_ids, cache):
    num_cached = cache[0][0].shape[1]
    positions = ⟦1:torch.arange(num_cached, num_cached + len(new_ids))⟧
    x, grown = model.embed(new_ids), []
    for layer, (old_k, old_v) in enumerate(cache):
        q, new_k, new_v = model.project(layer, x, positions)
        k = ⟦2:torch.cat([old_k, new_k], dim=1)⟧
        v = ⟦3:torch.cat([old_v, new_v], dim=1)⟧
        grown.append((k, v))
        attended = ⟦4:model.attend(q, k, v)⟧
        x = model.finish(layer, x, attended)
    return model.logits(⟦5:x[-1:]⟧)[0], grown
"""
BLOCK_POOL = """
class BlockPool:
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.free_ids = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if ⟦1:n > self.num_free⟧:
            raise OutOfBlocksError("no")
        block_ids = ⟦2:[self.free_ids.pop() for _ in range(n)]⟧
        for block_id in block_ids:
            self.ref_counts[block_id] = ⟦3:1⟧
        return block_ids

    def acquire(self, block_id):
        if ⟦8:not self.ref_counts[block_id]⟧:
            raise CacheStateError("free")
        self.ref_counts[block_id] = ⟦4:self.ref_counts[block_id] + 1⟧

    def release(self, block_id):
        if ⟦5:self.ref_counts[block_id] == 0⟧:
            raise CacheStateError("free")
        self.ref_counts[block_id] = ⟦6:self.ref_counts[block_id] - 1⟧
        if ⟦7:self.ref_counts[block_id] == 0⟧:
            self.free_ids.append(block_id)
"""
BLOCK_TABLE = """
class BlockTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids = []
        self.num_tokens = 0

    def grow(self, num_tokens):
        if ⟦7:num_tokens < self.num_tokens⟧:
            raise CacheStateError("smaller")
        num_blocks = ⟦1:-(-num_tokens // self.block_size)⟧
        num_missing = ⟦2:num_blocks - len(self.block_ids)⟧
        self.block_ids += self.pool.allocate(num_missing)
        self.num_tokens = num_tokens

    def slot(self, position):
        if not 0 <= position < self.num_tokens:
            raise IndexError(position)
        block_id = ⟦3:self.block_ids[position // self.block_size]⟧
        return ⟦4:block_id * self.block_size + position % self.block_size⟧

    def free(self):
        for block_id in ⟦5:self.block_ids⟧:
            self.pool.release(block_id)
        self.block_ids, self.num_tokens = ⟦6:[], 0⟧
"""
FORK = """
def fork(table):
    twin = type(table)(table.pool, table.block_size)
    for block_id in ⟦1:table.block_ids⟧:
        table.pool.acquire(block_id)
    twin.block_ids = ⟦2:list(table.block_ids)⟧
    twin.num_tokens = table.num_tokens
    return twin


def prepare_write(table):
    if ⟦3:table.num_tokens % table.block_size == 0⟧:
        return []
    shared = ⟦4:table.block_ids[-1]⟧
    if ⟦5:table.pool.ref_counts[shared] == 1⟧:
        return []
    (own,) = table.pool.allocate(1)
    ⟦6:table.pool.release(shared)⟧
    table.block_ids[-1] = ⟦7:own⟧
    return ⟦8:[(shared, own)]⟧
"""
PAGED_ATTENTION = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    def gather(cache, pages, length):
        return ⟦1:cache[pages].transpose(0, 1).flatten(1, 2)[:, :length]⟧

    page, group = k_cache.shape[2], q.shape[1] // k_cache.shape[1]
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        num_pages = ⟦2:-(-length // page)⟧
        pages = ⟦3:block_tables[b, :num_pages]⟧
        k, v = gather(k_cache, pages, length), gather(v_cache, pages, length)
        grouped = ⟦4:q[b].unflatten(0, (-1, group))⟧
        weights = ⟦5:(grouped @ k.mT * scale).softmax(-1)⟧
        out[b] = (weights @ v).flatten(0, 1)
    return out
"""
# The online softmax spelt out, so that its lines can be wrong, too.
DECODE_KERNEL = """
@triton.jit
def paged_decode_kernel(
    q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, qk_scale, table_row_stride,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    heads = ⟦1:kv_head * G + offs_m⟧
    mask_q = ⟦2:(offs_m < G)[:, None]⟧ & (offs_d < D)[None, :]
    offs_q = (sequence * H + heads)[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = ⟦3:positions < seq_len⟧
        pages = ⟦4:tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)⟧
        rows = ⟦5:(pages.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE⟧
        offs_kv = rows[:, None] * D + offs_d[None, :]
        mask_kv = ⟦6:in_range[:, None] & (offs_d < D)[None, :]⟧
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        scores = ⟦7:tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale⟧
        scores = ⟦8:tl.where(in_range[None, :], scores, float("-inf"))⟧
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = ⟦9:tl.exp2(scores - new_max[:, None])⟧
        rescale = ⟦10:tl.exp2(row_max - new_max)⟧
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    out = ⟦11:acc / row_sum[:, None]⟧
    tl.store(out_ptr + offs_q, out.to(out_ptr.dtype.element_ty), mask=mask_q)
"""
MERGE = """
def merge_splits(partial, lse):
    m = ⟦1:lse.amax(-1, keepdim=True)⟧
    m = ⟦2:torch.where(m.isneginf(), 0.0, m)⟧
    weights = ⟦3:torch.exp2(lse - m)⟧
    total = ⟦4:weights.sum(-1)⟧
    partial = ⟦5:torch.where(weights[..., None] > 0, partial, 0.0)⟧
    out = ⟦6:(weights[..., None] * partial).sum(-2) / torch.where(total == 0, 1.0, total)[..., None]⟧
    return out, ⟦7:m[..., 0] + total.log2()⟧
"""
QUANTISE = """
def quantise(x, q_max=127):
    x = x.float()
    largest = ⟦1:x.abs().amax(-1)⟧
    scale = ⟦2:largest.clamp(min=1e-30) / q_max⟧
    data = ⟦3:(x / scale[..., None]).round()⟧
    return data.to(torch.int8), scale


def dequantise(data, scale):
    return ⟦4:data.float() * scale[..., None]⟧
"""
STORE_MIXED = """
def store_mixed(x, num_recent):
    first = ⟦1:max(0, len(x) - num_recent)⟧
    data, scale = ⟦2:quantise(x[:first])⟧
    recent = ⟦3:x[first:].half()⟧
    num_bytes = ⟦4:data.nbytes + scale.nbytes + recent.nbytes⟧
    return ⟦5:torch.cat([dequantise(data, scale), recent.float()])⟧, num_bytes
"""
TEMPLATES = {
    "3.1": DECODE_STEP,
    "3.3": BLOCK_POOL,
    "3.4": BLOCK_TABLE,
    "3.5": FORK,
    "3.7": PAGED_ATTENTION,
    "3.8": DECODE_KERNEL,
    "3.12": MERGE,
    "3.13": QUANTISE,
    "3.14": STORE_MIXED,
}


def opened_all(banks: Mapping[str, Bank]) -> dict[str, Bank]:
    return {i: opened(bank, TEMPLATES[i]) if i in TEMPLATES else bank for i, bank in banks.items()}
