"""Answers that prove the checks of exercises 2.14 and 2.15."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

A_LOOP = """
def slot_mapping(block_table, start, end, block_size):
    slots = [block_table[p // block_size].item() * block_size + p % block_size for p in range(start, end)]
    return torch.tensor(slots, dtype=torch.int64)
"""
ALL_THEN_CUT = """
def slot_mapping(block_table, start, end, block_size):
    every = block_table.long()[:, None] * block_size + torch.arange(block_size)
    return every.flatten()[start:end]
"""
COUNTS_FROM_ZERO = """
def slot_mapping(block_table, start, end, block_size):
    positions = torch.arange(end - start)
    return block_table[positions // block_size].long() * block_size + positions % block_size
"""
ONE_TOO_MANY = """
def slot_mapping(block_table, start, end, block_size):
    positions = torch.arange(start, end + 1)
    return block_table[positions // block_size].long() * block_size + positions % block_size
"""
OVERWRITES_THE_TABLE = """
def slot_mapping(block_table, start, end, block_size):
    positions = torch.arange(start, end)
    slots = block_table[positions // block_size].long() * block_size + positions % block_size
    block_table.mul_(block_size)
    return slots
"""
KEYS_TWICE = """
@triton.jit
def kv_write_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slot_mapping_ptr,
    H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    offs_h = tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_h < H_KV)[:, None] & (offs_d < D)[None, :]
    from_offs = (token * H_KV + offs_h)[:, None] * D + offs_d[None, :]
    to_offs = ((slot // PAGE * H_KV + offs_h) * PAGE + slot % PAGE)[:, None] * D + offs_d[None, :]
    k = tl.load(k_ptr + from_offs, mask=mask)
    tl.store(k_cache_ptr + to_offs, k, mask=mask)
    tl.store(v_cache_ptr + to_offs, k, mask=mask)
"""
HEAD_BY_HEAD = """
@triton.jit
def kv_write_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slot_mapping_ptr,
    H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0)
    slot = tl.load(slot_mapping_ptr + token)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_d < D) & (slot >= 0)
    for head in range(H_KV):
        from_offs = (token * H_KV + head) * D + offs_d
        to_offs = ((slot // PAGE * H_KV + head) * PAGE + slot % PAGE) * D + offs_d
        tl.store(k_cache_ptr + to_offs, tl.load(k_ptr + from_offs, mask=mask), mask=mask)
        tl.store(v_cache_ptr + to_offs, tl.load(v_ptr + from_offs, mask=mask), mask=mask)
"""
FINDS = "finds page and offset"
SLOT = "writes each token to its slot"
ANY_HEADS = "takes any number and size of heads"

BANKS = {
    "2.14": Bank(
        wrong=(
            Wrong("the entry's number as page", {1: "positions // block_size"}, FINDS),
            Wrong("the offset as entry", {1: "block_table[positions % block_size].long()"}, FINDS),
            Wrong("adds the page instead of multiplying", {2: "pages + positions % block_size"}, FINDS),
            Wrong("always the page's first slot", {2: "pages * block_size"}, FINDS),
            Wrong("the position as offset", {2: "pages * block_size + positions"}, FINDS),
            Wrong(
                "offsets counted from start",
                {2: "pages * block_size + (positions - start) % block_size"},
                "starts anywhere",
            ),
            Wrong("counts from zero", COUNTS_FROM_ZERO, "starts anywhere"),
            Wrong("one position too many", ONE_TOO_MANY, "gives an int64 per position"),
            Wrong("32 bits", {2: "(pages * block_size + positions % block_size).int()"}, "gives an int64 per position"),
            Wrong("multiplies in 32 bits", {1: "block_table[positions // block_size]"}, "survives large pools"),
            Wrong("writes into the table", OVERWRITES_THE_TABLE, "leaves the table alone"),
        ),
        right=(
            Right("a loop", A_LOOP),
            Right("all slots, then a slice", ALL_THEN_CUT),
            Right("converts first", {1: "block_table.long()[positions.div(block_size, rounding_mode='floor')]"}),
        ),
    ),
    "2.15": Bank(
        wrong=(
            Wrong("never skips", {1: "slot < -(10**9)"}, "skips tokens without a slot"),
            Wrong("skips slot 0 too", {1: "slot <= 0"}, SLOT),
            Wrong("no mask for heads", {2: "(offs_h >= 0)[:, None] & (offs_d < D)[None, :]"}, ANY_HEADS),
            Wrong("no mask for dims", {2: "(offs_h < H_KV)[:, None] & (offs_d >= 0)[None, :]"}, ANY_HEADS),
            Wrong("one head too few", {2: "(offs_h < H_KV - 1)[:, None] & (offs_d < D)[None, :]"}, SLOT),
            Wrong("always the first token", {3: "offs_h"}, SLOT),
            Wrong("tokens overlap", {3: "token + offs_h"}, SLOT),
            Wrong("the next token", {3: "(token + 1) * H_KV + offs_h"}, SLOT),
            Wrong("heads side by side", {4: "slot * H_KV + offs_h"}, SLOT),
            Wrong("page and offset exchanged", {4: "(slot % PAGE * H_KV + offs_h) * PAGE + slot // PAGE"}, SLOT),
            Wrong("always the page's first slot", {4: "(slot // PAGE * H_KV + offs_h) * PAGE"}, SLOT),
            Wrong("the slot as offset", {4: "(slot // PAGE * H_KV + offs_h) * PAGE + slot"}, SLOT),
            Wrong("the slot as page", {4: "(slot * H_KV + offs_h) * PAGE + slot % PAGE"}, SLOT),
            Wrong("keys for values", KEYS_TWICE, SLOT),
        ),
        right=(
            Right("a loop over heads", HEAD_BY_HEAD),
            Right("written out", {4: "slot // PAGE * (H_KV * PAGE) + offs_h * PAGE + slot % PAGE"}),
            Right("the other way round", {1: "slot <= -1", 3: "offs_h + H_KV * token"}),
        ),
    ),
}
