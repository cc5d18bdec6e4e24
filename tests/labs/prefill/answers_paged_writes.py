"""Answers that prove the checks of exercises 2.8 and 2.9."""

from tests.labs.prefill.variants import edited
from twophase_labs.machine.exercise import Bank, Right, Wrong

SOLVED_2_8 = """
def slot_mapping(block_table, start, end, block_size):
    positions = torch.arange(start, end)
    pages = block_table[positions // block_size].long()
    return pages * block_size + positions % block_size
"""

BANKS = {
    "2.8": Bank(
        wrong=(
            Wrong(
                "pages that are powers of two",
                edited(
                    SOLVED_2_8,
                    (
                        "return pages * block_size + positions % block_size",
                        "return pages * block_size + (positions & (block_size - 1))",
                    ),
                ),
                "finds block and offset",
            ),
            Wrong(
                "at most 16 pages",
                edited(
                    SOLVED_2_8,
                    (
                        "pages = block_table[positions // block_size].long()",
                        "pages = block_table[(positions // block_size).clamp(max=15)].long()",
                    ),
                ),
                "finds block and offset",
            ),
            Wrong(
                "the entry's number as page",
                edited(
                    SOLVED_2_8,
                    ("pages = block_table[positions // block_size].long()", "pages = positions // block_size"),
                ),
                "finds block and offset",
            ),
            Wrong(
                "the offset as entry",
                edited(
                    SOLVED_2_8,
                    (
                        "pages = block_table[positions // block_size].long()",
                        "pages = block_table[positions % block_size].long()",
                    ),
                ),
                "finds block and offset",
            ),
            Wrong(
                "adds the page instead of multiplying",
                edited(
                    SOLVED_2_8,
                    ("return pages * block_size + positions % block_size", "return pages + positions % block_size"),
                ),
                "finds block and offset",
            ),
            Wrong(
                "always the page's first slot",
                edited(SOLVED_2_8, ("return pages * block_size + positions % block_size", "return pages * block_size")),
                "finds block and offset",
            ),
            Wrong(
                "the position as offset",
                edited(
                    SOLVED_2_8,
                    ("return pages * block_size + positions % block_size", "return pages * block_size + positions"),
                ),
                "finds block and offset",
            ),
            Wrong(
                "offsets counted from start",
                edited(
                    SOLVED_2_8,
                    (
                        "return pages * block_size + positions % block_size",
                        "return pages * block_size + (positions - start) % block_size",
                    ),
                ),
                "starts anywhere",
            ),
            Wrong(
                "counts from zero",
                """
def slot_mapping(block_table, start, end, block_size):
    positions = torch.arange(end - start)
    return block_table[positions // block_size].long() * block_size + positions % block_size
""",
                "starts anywhere",
            ),
            Wrong(
                "one position too many",
                """
def slot_mapping(block_table, start, end, block_size):
    positions = torch.arange(start, end + 1)
    return block_table[positions // block_size].long() * block_size + positions % block_size
""",
                "gives an int64 per position",
            ),
            Wrong(
                "32 bits",
                edited(
                    SOLVED_2_8,
                    (
                        "return pages * block_size + positions % block_size",
                        "return (pages * block_size + positions % block_size).int()",
                    ),
                ),
                "gives an int64 per position",
            ),
            Wrong(
                "multiplies in 32 bits",
                edited(
                    SOLVED_2_8,
                    (
                        "pages = block_table[positions // block_size].long()",
                        "pages = block_table[positions // block_size]",
                    ),
                ),
                "survives large pools",
            ),
            Wrong(
                "writes into the table",
                """
def slot_mapping(block_table, start, end, block_size):
    positions = torch.arange(start, end)
    slots = block_table[positions // block_size].long() * block_size + positions % block_size
    block_table.mul_(block_size)
    return slots
""",
                "leaves the table alone",
            ),
            Wrong(
                "a quotient in float32",
                """
def slot_mapping(block_table, start, end, block_size):
    p = torch.arange(start, end)
    b = (p.float() / block_size).floor().long()
    return block_table[b].long() * block_size + p % block_size
""",
                "survives long sequences",
            ),
            Wrong(
                "remembers slots by their positions",
                """
_kept = {}
def slot_mapping(block_table, start, end, block_size):
    key = start, end, block_size
    if key not in _kept:
        p = torch.arange(start, end)
        _kept[key] = block_table[p // block_size].long() * block_size + p % block_size
    return _kept[key]
""",
                "keeps nothing for the next call",
            ),
            Wrong(
                "the table itself for blocks of one slot",
                """
def slot_mapping(block_table, start, end, block_size):
    if block_size == 1:
        return block_table[start:end]
    p = torch.arange(start, end)
    return block_table[p // block_size].long() * block_size + p % block_size
""",
                "starts anywhere",
            ),
            Wrong(
                "floats where there is no position",
                """
def slot_mapping(block_table, start, end, block_size):
    return torch.tensor([int(block_table[p // block_size]) * block_size + p % block_size for p in range(start, end)])
""",
                "gives an int64 per position",
            ),
        ),
        right=(
            Right(
                "a loop",
                """
def slot_mapping(block_table, start, end, block_size):
    slots = [block_table[p // block_size].item() * block_size + p % block_size for p in range(start, end)]
    return torch.tensor(slots, dtype=torch.int64)
""",
            ),
            Right(
                "all slots, then a slice",
                """
def slot_mapping(block_table, start, end, block_size):
    every = block_table.long()[:, None] * block_size + torch.arange(block_size)
    return every.flatten()[start:end]
""",
            ),
            Right(
                "converts first",
                edited(
                    SOLVED_2_8,
                    (
                        "pages = block_table[positions // block_size].long()",
                        "pages = block_table.long()[positions.div(block_size, rounding_mode='floor')]",
                    ),
                ),
            ),
            Right(
                "a block at a time",
                """
def slot_mapping(block_table, start, end, block_size):
    pieces, p = [torch.empty(0, dtype=torch.long)], start
    while p < end:
        stop = min(end, (p // block_size + 1) * block_size)
        base = int(block_table[p // block_size]) * block_size
        pieces.append(torch.arange(base + p % block_size, base + p % block_size + stop - p))
        p = stop
    return torch.cat(pieces)
""",
            ),
        ),
    ),
    "2.9": Bank(
        wrong=(
            Wrong(
                "pages of four", {4: "(slot // 4 * H_KV + offs_h) * 4 + slot % 4"}, "takes any number and size of heads"
            ),
            Wrong("never skips", {1: "slot < -(10**9)"}, "skips tokens without a slot"),
            Wrong("skips slot 0 too", {1: "slot <= 0"}, "writes each token to its slot"),
            Wrong(
                "no mask for heads",
                {2: "(offs_h >= 0)[:, None] & (offs_d < D)[None, :]"},
                "takes any number and size of heads",
            ),
            Wrong(
                "no mask for dims",
                {2: "(offs_h < H_KV)[:, None] & (offs_d >= 0)[None, :]"},
                "takes any number and size of heads",
            ),
            Wrong(
                "one head too few",
                {2: "(offs_h < H_KV - 1)[:, None] & (offs_d < D)[None, :]"},
                "writes each token to its slot",
            ),
            Wrong("always the first token", {3: "offs_h"}, "writes each token to its slot"),
            Wrong("tokens overlap", {3: "token + offs_h"}, "writes each token to its slot"),
            Wrong("the next token", {3: "(token + 1) * H_KV + offs_h"}, "writes each token to its slot"),
            Wrong("heads side by side", {4: "slot * H_KV + offs_h"}, "writes each token to its slot"),
            Wrong(
                "page and offset exchanged",
                {4: "(slot % PAGE * H_KV + offs_h) * PAGE + slot // PAGE"},
                "writes each token to its slot",
            ),
            Wrong(
                "always the page's first slot",
                {4: "(slot // PAGE * H_KV + offs_h) * PAGE"},
                "writes each token to its slot",
            ),
            Wrong(
                "the slot as offset",
                {4: "(slot // PAGE * H_KV + offs_h) * PAGE + slot"},
                "writes each token to its slot",
            ),
            Wrong(
                "the slot as page", {4: "(slot * H_KV + offs_h) * PAGE + slot % PAGE"}, "writes each token to its slot"
            ),
            Wrong(
                "keys for values",
                """
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
""",
                "writes each token to its slot",
            ),
            Wrong(
                "leaves out zeros",
                """
@triton.jit
def kv_write_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_mapping_ptr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    offs_h = tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_h < H_KV)[:, None] & (offs_d < D)[None, :]
    from_rows = token * H_KV + offs_h
    to_rows = (slot // PAGE * H_KV + offs_h) * PAGE + slot % PAGE
    from_offs = from_rows[:, None] * D + offs_d[None, :]
    to_offs = to_rows[:, None] * D + offs_d[None, :]
    k = tl.load(k_ptr + from_offs, mask=mask, other=0.0)
    v = tl.load(v_ptr + from_offs, mask=mask, other=0.0)
    tl.store(k_cache_ptr + to_offs, k, mask=mask)
    old = tl.load(v_cache_ptr + to_offs, mask=mask, other=0.0)
    tl.store(v_cache_ptr + to_offs, tl.where(v == 0, old, v), mask=mask)
""",
                "writes each token to its slot",
            ),
            Wrong(
                "tokens without a slot go to slot 0",
                """
@triton.jit
def kv_write_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_mapping_ptr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0)
    slot = tl.load(slot_mapping_ptr + token)
    slot = tl.maximum(slot, 0)
    offs_h = tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_h < H_KV)[:, None] & (offs_d < D)[None, :]
    from_rows = token * H_KV + offs_h
    to_rows = (slot // PAGE * H_KV + offs_h) * PAGE + slot % PAGE
    from_offs = from_rows[:, None] * D + offs_d[None, :]
    to_offs = to_rows[:, None] * D + offs_d[None, :]
    k = tl.load(k_ptr + from_offs, mask=mask, other=0.0)
    v = tl.load(v_ptr + from_offs, mask=mask, other=0.0)
    tl.store(k_cache_ptr + to_offs, k, mask=mask)
    tl.store(v_cache_ptr + to_offs, v, mask=mask)
""",
                "skips tokens without a slot",
            ),
        ),
        right=(
            Right(
                "a loop over heads",
                """
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
""",
            ),
            Right("written out", {4: "slot // PAGE * (H_KV * PAGE) + offs_h * PAGE + slot % PAGE"}),
            Right("the other way round", {1: "slot <= -1", 3: "offs_h + H_KV * token"}),
            Right(
                "no branch: the slot is part of the mask",
                """
@triton.jit
def kv_write_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_mapping_ptr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0)
    slot = tl.load(slot_mapping_ptr + token)
    offs_h = tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (slot >= 0) & (offs_h < H_KV)[:, None] & (offs_d < D)[None, :]
    from_rows = token * H_KV + offs_h
    to_rows = (slot // PAGE * H_KV + offs_h) * PAGE + slot % PAGE
    from_offs = from_rows[:, None] * D + offs_d[None, :]
    to_offs = to_rows[:, None] * D + offs_d[None, :]
    k = tl.load(k_ptr + from_offs, mask=mask, other=0.0)
    v = tl.load(v_ptr + from_offs, mask=mask, other=0.0)
    tl.store(k_cache_ptr + to_offs, k, mask=mask)
    tl.store(v_cache_ptr + to_offs, v, mask=mask)
""",
            ),
        ),
    ),
}
