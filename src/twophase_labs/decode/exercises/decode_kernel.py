"""3.6 The paged decode kernel."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from twophase_labs.decode.decode_cases import (
    AXES,
    DecodeCase,
    compare_access,
    compare_kv_heads,
    compare_reads,
    map_case,
    naive_decode,
    on_device,
    random_case,
)
from twophase_labs.decode.launch import launch_paged_decode
from twophase_labs.kit.guarded import run_guarded
from twophase_labs.machine.checks import Draw, compare, finite, reject
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.kernels import device

KERNEL = exercise(
    "3.6", "The paged decode kernel", "paged_decode_kernel", "kernel", points=6, minutes=18, lines=26, difficulty=3
)
KERNEL.time_limit_s = 60
KERNEL.objective = "write a kernel that reads keys and values where they lie, for a group of query heads, tile by tile"
KERNEL.hints = (
    "Before the loop a program needs: its sequence and KV head from the grid, the sequence's length, the tile of its G "
    "queries (rows below G, columns below D, masked for both), and the state of an online softmax with no key in it "
    "yet. After the loop: one division, one store under the mask of the queries. Of 2.8 all that has to do with "
    "chunks is gone: row m of the tile is query head kv_head * G + m.",
    "In the loop, for the positions start to start + BLOCK_N - 1: which of them exist; the id that this "
    "sequence's row of the table has for each one's block; its row in the cache, as in 2.8; K and V of these rows. "
    "What is past the end is masked three times: in the table, in K and V, and in the scores, there with minus "
    "infinity. Then the tile is folded into the state.",
    "Skeleton:\n"
    "sequence, kv_head = ...\n"
    "G: tl.constexpr = H // H_KV\n"
    "length = tl.load(...)\n"
    "offs_m = tl.arange(0, BLOCK_M)\n"
    "offs_d = ...\n"
    "mask_q = ...\n"
    "offs_q = (sequence * H + kv_head * G + offs_m)[:, None] * D + ...\n"
    "q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)\n"
    "row_max = tl.full([BLOCK_M], float('-inf'), tl.float32)\n"
    "row_sum = ...\n"
    "acc = ...\n"
    "for start in range(0, length, BLOCK_N):\n"
    "    positions = start + tl.arange(0, BLOCK_N)\n"
    "    in_range = ...\n"
    "    page_ids = tl.load(block_tables_ptr + ..., mask=in_range, other=0)\n"
    "    rows = (page_ids.to(tl.int64) * H_KV + kv_head) * ...\n"
    "    offs_kv = rows[:, None] * D + ...\n"
    "    mask_kv = ...\n"
    "    k = tl.load(...)\n"
    "    v = tl.load(...)\n"
    "    row_max, row_sum, acc = fold_tile(q, k, v, ..., qk_scale, row_max, row_sum, acc)\n"
    "tl.store(out_ptr + offs_q, ..., mask=mask_q)",
)

OUT_AXES = AXES["out"]


def run_kernel(kernel: Any, case: DecodeCase, block_n: int = 16) -> Tensor:
    def launch(**tensors: Tensor) -> object:
        return launch_paged_decode(kernel, **tensors, scale=case.scale, block_n=block_n)

    return run_guarded(launch, case.inputs, {"out": torch.empty_like(case.q)})["out"]


class FirstKVHead:
    """A kernel that is launched for KV head 0 alone."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        return self.kernel[grid[0], 1]


@KERNEL.check("writes the rows of its query heads, and no others", heads=(1, 2, 9), kv_heads=(1, 2, 3))
def writes_its_rows(answer: Any, draw: Draw, heads: int, kv_heads: int) -> None:
    """A tile has more rows than the group has heads: only `offs_m < G` hold a query of this program, and no other row
    may be loaded or stored. NaN comes from a row that was never stored (outputs are handed to you full of NaN), from
    -inf minus -inf, or from 0 / 0."""
    case = map_case(draw, [16, 9], heads=heads, kv_heads=kv_heads, page=16, num_pages=3)
    finite(run_kernel(answer.paged_decode_kernel, case), "the output", OUT_AXES)
    # Programs run at the same time: what one writes into another's row is there by chance, and by chance is right.
    out = torch.full_like(case.q, 7.0).to(device)
    inputs: dict[str, Any] = {**on_device(case), "out": out, "block_n": 16}
    launch_paged_decode(FirstKVHead(answer.paged_decode_kernel), **inputs)
    got = out.cpu()
    group = heads // kv_heads
    for sequence, head in [(s, h) for s in range(2) for h in range(group, heads)]:
        if not bool((got[sequence, head] == 7).all()):
            reject(
                f"the program of sequence {sequence}, KV head 0 stored into the row of query head {head}",
                f"its group are query heads 0 to {group - 1}; the others belong to programs that run at the same time",
            )


@KERNEL.check("gives every query head its KV head", heads=(2, 6, 6), kv_heads=(1, 3, 2))
def reads_its_kv_head(answer: Any, draw: Draw, heads: int, kv_heads: int) -> None:
    """Query heads `kv_head * G` to `kv_head * G + G - 1` share a KV head: neighbours. In the cache, too, the KV
    head says which part of a block is read."""
    case = map_case(draw, [16], heads=heads, kv_heads=kv_heads, page=16, num_pages=2)
    compare_kv_heads(case, run_kernel(answer.paged_decode_kernel, case))


@KERNEL.check("finds the blocks", lengths=([16], [32], [16, 16]))
def finds_the_blocks(answer: Any, draw: Draw, lengths: list[int]) -> None:
    """Every sequence has a row of the table of its own, `table_row_stride` after the one before. Each position asks it
    for its own block, `positions // PAGE`, and stands at `positions % PAGE` in the block that it gets. A tile may span
    several blocks."""
    case = map_case(draw, lengths, heads=2, kv_heads=1, page=4, num_pages=10)
    compare_reads(case, run_kernel(answer.paged_decode_kernel, case, block_n=max(lengths)))


@KERNEL.check("stops at the last token", lengths=([5], [8], [1], [3, 11, 9]))
def stops_at_the_last_token(answer: Any, draw: Draw, lengths: list[int]) -> None:
    """Positions 0 to seq_len - 1 exist. The last tile is seldom full: what is past the end is masked when loading,
    and its score is set to minus infinity (a score of 0 is a weight like any other). Weights that are all too large
    by one factor lack the division by their sum."""
    case = map_case(draw, lengths, heads=2, kv_heads=1, page=4, num_pages=10)
    compare_access(case, run_kernel(answer.paged_decode_kernel, case))


@KERNEL.check(
    "weighs keys by their scores, from tile to tile",
    lengths=([2], [6, 11], [20], [20], [45], [45]),
    scores=("any", "any", "rising", "falling", "rising", "falling"),
)
def weighs_by_softmax(answer: Any, draw: Draw, lengths: list[int], scores: str) -> None:
    """The right keys are read. `qk_scale` holds the scale times log2(e), so exp2 of the scaled scores is what exp
    of the plain ones would be; in the end, weights add up to one. A tile with a larger maximum makes all earlier sums
    smaller: by 2 to the power of old maximum minus new one."""
    case = map_case(draw, lengths, heads=4, kv_heads=2, page=4, num_pages=13, peak=0.7)
    if scores != "any":
        # The heads of a group ask for the same, more or less sharply, so that their scores can rise or fall.
        case.q[0] = case.q[0, :1] * torch.tensor([0.5, 1.5, 0.5, 1.5])[:, None]
        slots = case.slots(0)
        for kv_head in range(2):
            keys = torch.stack([case.k_cache[n, kv_head, s] for n, s in slots])
            order = (keys @ case.q[0, 0]).argsort(descending=scores == "falling")
            for key, (n, s) in zip(keys[order], slots, strict=True):
                case.k_cache[n, kv_head, s] = key
    compare_access(case, run_kernel(answer.paged_decode_kernel, case))


@KERNEL.check(
    "matches a loop over positions",
    {"lengths": [1], "heads": 1, "kv_heads": 1, "dim": 16, "page": 16},
    {"lengths": [17, 1, 30], "heads": 9, "kv_heads": 3, "dim": 24, "page": 5},
    {"lengths": [200, 2], "heads": 2, "kv_heads": 2, "dim": 16, "page": 12},
)
def matches_a_loop(answer: Any, draw: Draw, lengths: list[int], heads: int, kv_heads: int, dim: int, page: int) -> None:
    """Every weight is right for these shapes; look for a size that you took for another one."""
    case = random_case(draw, lengths, heads=heads, kv_heads=kv_heads, dim=dim, page=page)
    expected, _ = naive_decode(case)
    compare(run_kernel(answer.paged_decode_kernel, case), expected, what="the output", axes=OUT_AXES, atol=1e-4)


@KERNEL.check("survives any level of scores", score=(None, -100_000, 100_000))
def survives_any_level(answer: Any, draw: Draw, score: int | None) -> None:
    """2 to the power of several hundred is no float: subtract the maximum before exp2. And what is masked has a score
    of minus infinity: any number is larger than some score."""
    if score is None:
        case = random_case(draw, [40, 23], heads=3, kv_heads=1, dim=16, page=8, peak=200)
        what, tolerance = "the output, with scores of several hundred,", 1e-2
    else:
        # Far from 0, and a last tile that is not full.
        case = random_case(draw, [21, 3], heads=3, kv_heads=1, dim=16, page=8)
        case.level_scores(score)
        what, tolerance = f"the output, with all scores at {score:,},", 1e-4
    expected, _ = naive_decode(case)
    got = run_kernel(answer.paged_decode_kernel, case)
    finite(got, what, OUT_AXES)
    # Scores of several hundred are rounded to 1e-5 or so, and an error of a score is a relative error of its weight.
    compare(got, expected, what=what, axes=OUT_AXES, rtol=tolerance, atol=tolerance)


@KERNEL.check("keeps unused slots out", lengths=([5], [3, 18]))
def keeps_stale_slots_out(answer: Any, draw: Draw, lengths: list[int]) -> None:
    """A weight of 0 times NaN is NaN: what a slot past the end holds must not be loaded at all, neither from K nor
    from V."""
    # A page given back is not wiped; page 0, with which tables are padded, is nobody's.
    case = random_case(draw, lengths, heads=3, kv_heads=1, dim=16, page=4, first_page=1)
    expected, _ = naive_decode(case)
    case.spoil_unused_slots()
    got = run_kernel(answer.paged_decode_kernel, case)
    finite(got, "the output, with NaN in unused slots,", OUT_AXES)
    compare(got, expected, what="the output, with NaN in unused slots,", axes=OUT_AXES, atol=1e-4)


KERNEL.compiled = partial(matches_a_loop, lengths=[17, 1, 30], heads=9, kv_heads=3, dim=24, page=5)
