"""2.6 Blocks: slots, and the kernel that writes K and V into them."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.kit.guarded import run_guarded
from twophase_labs.machine.checks import Draw, compare, fresh, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.prefill.launch import launch_kv_write

SLOTS = exercise("2.8", "From positions to slots", "slot_mapping", points=2, minutes=5, lines=3)
SLOTS.objective = "translate positions to slots through a block table"
SLOTS.hints = (
    "Do it by hand for position 9, blocks of 4, table [6, 1, 4].",
    "Which entry of the table? That is a division, rounded down. Which slot in the block? That is what is left.",
    "Skeleton:\n"
    "positions = torch.arange(...)\n"
    "blocks = block_table[...].long()   # a whole tensor of entries at once\n"
    "return blocks * ... + ...",
)


def slots_by_hand(table: Tensor, start: int, end: int, block_size: int) -> Tensor:
    slots = []
    for position in range(start, end):
        block, offset = divmod(position, block_size)
        slots.append(int(table[block]) * block_size + offset)
    return torch.tensor(slots, dtype=torch.int64)


def random_table(draw: Draw, num_entries: int) -> Tensor:
    return (draw.permutation(max(50, num_entries))[:num_entries] + 1).int()


@SLOTS.check("gives an int64 per position", start=(0, 3, 5), end=(1, 9, 5))
def is_int64(answer: Any, draw: Draw, start: int, end: int) -> None:
    """One slot per position from start to end - 1, as int64."""
    got = answer.slot_mapping(random_table(draw, 6), start, end, 4)
    if not isinstance(got, Tensor):
        reject(f"the slots are a {type(got).__name__}, expected a tensor")
    compare(torch.zeros_like(got), torch.zeros(end - start, dtype=torch.int64), what="the tensor of slots")


@SLOTS.check("finds block and offset", end=(1, 9, 90, 200), block_size=(4, 4, 16, 7))
def starts_at_zero(answer: Any, draw: Draw, end: int, block_size: int) -> None:
    """slot = block · block_size + offset; the block is what the table says, not the number of its entry."""
    table = random_table(draw, end // block_size + 2)
    expected = slots_by_hand(table, 0, end, block_size)
    compare(answer.slot_mapping(table, 0, end, block_size), expected, what="the slot", axes=("position",))


@SLOTS.check("starts anywhere", start=(4, 3, 31, 101, 2), end=(5, 13, 80, 290, 9), block_size=(4, 4, 16, 12, 1))
def starts_anywhere(answer: Any, draw: Draw, start: int, end: int, block_size: int) -> None:
    """Entry and offset depend on the position in the sequence, not on the number of the token in its chunk."""
    table = random_table(draw, end // block_size + 2)
    expected = slots_by_hand(table, start, end, block_size)
    what = f"the slot of a token from position {start} on"
    compare(answer.slot_mapping(table, start, end, block_size), expected, what=what, axes=("token",))


@SLOTS.check("survives large pools")
def survives_large_pools(answer: Any, draw: Draw) -> None:
    """A block number is int32, and times the block size it may not fit any more. Convert before multiplying."""
    table = torch.tensor([2**28 + 3, 2**30], dtype=torch.int32)
    expected = slots_by_hand(table, 0, 20, 16)
    compare(answer.slot_mapping(table, 0, 20, 16), expected, what="the slot", axes=("position",))


SLOTS.check(
    "survives long sequences",
    start=(2**24 + 2040,),
    end=(2**24 + 2056,),
    block_size=(2048,),
    hint="A position divided by `/` is a float32, which is exact up to 2^24 only; `//` stays with integers.",
)(starts_anywhere)


@SLOTS.check("leaves the table alone", block_size=(4, 1, 1), dtype=(torch.int32, torch.int32, torch.int64))
def leaves_the_table_alone(answer: Any, draw: Draw, block_size: int, dtype: torch.dtype) -> None:
    """Make new tensors: do not write into the table, and do not return a part of it."""
    # Neither the call writes into the table nor the caller who writes into the slots, such as a -1 for padding.
    table = random_table(draw, 12).to(dtype)
    with unchanged(block_table=table):
        slots = answer.slot_mapping(table, 2, 9, block_size)
        fresh(slots, block_table=table)


@SLOTS.check("keeps nothing for the next call", num_entries=(5, 6, 7))
def keeps_nothing(answer: Any, draw: Draw, num_entries: int) -> None:
    """The slots depend on what the table holds now, not on an earlier call."""
    # The same positions for another sequence, and for the same one after its table was changed.
    table = random_table(draw, num_entries)
    for other, whose in ((table, "one sequence"), (table.flip(0) + 7, "another sequence, of the same length,")):
        what = f"the slot of {whose}"
        compare(answer.slot_mapping(other, 3, 18, 4), slots_by_hand(other, 3, 18, 4), what=what, axes=("token",))
    table += 50
    what = "the slot after other blocks were put into the table"
    compare(answer.slot_mapping(table, 3, 18, 4), slots_by_hand(table, 3, 18, 4), what=what, axes=("token",))


WRITE = exercise(
    "2.9", "The K/V write kernel", "kv_write_kernel", "kernel", points=3, minutes=10, lines=4, difficulty=2
)
WRITE.objective = "scatter new keys and values into blocks"
WRITE.hints = (
    "Say in words where element d of head h of a token in slot 17 stands, for blocks of 4 and 3 heads.",
    "In memory come first all of block 0, in it all of head 0, in it slot 0. So a row of D elements is counted by "
    "blocks, then heads, then slots.",
    "A mask for a tile [BLOCK_H, BLOCK_D] is made of one for each axis: `a[:, None] & b[None, :]`.",
)


def write_and_compare(
    answer: Any, draw: Draw, slots: Tensor, num_pages: int, num_kv_heads: int, head_dim: int, page: int
) -> None:
    """Both caches after the write, slot by slot; what is wrong is told in terms of tokens."""
    # A zero is a value like any other, and is written like one.
    k, v = (
        draw.normal(len(slots), num_kv_heads, head_dim) * (draw.uniform(len(slots), num_kv_heads, head_dim) > 0.1)
        for _ in range(2)
    )
    k_cache, v_cache = (draw.normal(num_pages, num_kv_heads, page, head_dim) for _ in range(2))
    inputs = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slot_mapping": slots}
    got = run_guarded(
        lambda **tensors: launch_kv_write(answer.kv_write_kernel, **tensors), inputs, {}, mutable=("k_cache", "v_cache")
    )
    token_of = {int(slot): token for token, slot in enumerate(slots.tolist()) if slot >= 0}
    for name, new, other, before in (("k", k, v, k_cache), ("v", v, k, v_cache)):
        after = got[f"{name}_cache"]
        for slot in range(num_pages * page):
            for head in range(num_kv_heads):
                held = after[slot // page, head, slot % page]
                token = token_of.get(slot)
                wanted = before[slot // page, head, slot % page] if token is None else new[token, head]
                if not torch.equal(held, wanted):
                    place = f"slot {slot} of {name}_cache (block {slot // page}, offset {slot % page}), KV head {head},"
                    should = "should be left alone" if token is None else f"should hold {name} of token {token}"
                    reject(
                        f"{place} {should}; {_holds(held, new, other, name, before[slot // page, head, slot % page])}"
                    )


def _holds(held: Tensor, new: Tensor, other: Tensor, name: str, before: Tensor) -> str:
    if torch.equal(held, before):
        return "it was not written"
    for source, label in ((new, name), (other, "v" if name == "k" else "k")):
        found = (source == held).all(-1).nonzero().tolist()
        if found:
            return f"it holds {label} of token {found[0][0]}, head {found[0][1]}"
    return "it holds parts of something else"


@WRITE.check("writes each token to its slot", num_tokens=(1, 5, 24), num_kv_heads=(1, 2, 4))
def writes_to_its_slot(answer: Any, draw: Draw, num_tokens: int, num_kv_heads: int) -> None:
    """The cache is [N, H_KV, PAGE, D]: row (block · H_KV + head) · PAGE + offset. The token's own rows are token ·
    H_KV + head."""
    write_and_compare(answer, draw, draw.permutation(24)[:num_tokens], 6, num_kv_heads, 16, 4)


@WRITE.check("skips tokens without a slot", slots=([-1], [5, -1, 3], [-1, -7, 0, 11]))
def skips_tokens_without_a_slot(answer: Any, draw: Draw, slots: list[int]) -> None:
    """A negative slot means: written nowhere. The program returns before it computes an address."""
    write_and_compare(answer, draw, torch.tensor(slots), 3, 2, 16, 4)


@WRITE.check("takes any number and size of heads", num_kv_heads=(3, 5, 9), head_dim=(16, 24, 16), page=(4, 6, 16))
def takes_any_heads(answer: Any, draw: Draw, num_kv_heads: int, head_dim: int, page: int) -> None:
    """Tiles are powers of two, H_KV and D need not be: what is beyond them is masked, in loads and stores."""
    write_and_compare(answer, draw, draw.permutation(4 * page)[:7], 4, num_kv_heads, head_dim, page)
