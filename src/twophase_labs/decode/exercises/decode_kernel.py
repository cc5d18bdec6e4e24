"""3.8 The paged decode kernel."""

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
    "3.8", "The paged decode kernel", "paged_decode_kernel", "kernel", points=6, minutes=14, lines=5, difficulty=3
)
KERNEL.time_limit_s = 60
KERNEL.objective = "read keys and values where they lie, a tile at a time, for a whole group of query heads"
KERNEL.hints = (
    "Go through the prefill kernel line by line with a chunk of one token: which lines become constants, and which "
    "rows of the tile are left?",
    "Three indices are in play: the position in the sequence, the id that the table has for its block, and the "
    "offset in that block. Only the position knows where the sequence ends.",
    "Row `(page * H_KV + kv_head) * PAGE + offset` of the cache, D elements wide. `in_range` masks what is past the "
    "end three times: in the table, in K and V, and in the scores.",
)

OUT_AXES = AXES["out"]


def run_kernel(kernel: Any, case: DecodeCase, block_n: int = 16) -> Tensor:
    def launch(**tensors: Tensor) -> object:
        return launch_paged_decode(kernel, **tensors, scale=case.scale, block_n=block_n)

    return run_guarded(launch, case.inputs, {"out": torch.empty_like(case.q)})["out"]


@KERNEL.check("writes a number for every query head", heads=(1, 6), kv_heads=(1, 2))
def writes_every_row(answer: Any, draw: Draw, heads: int, kv_heads: int) -> None:
    """A row of the tile holds a query head if it is one of G; no other row may be loaded or stored. NaN comes from
    a row that was never stored (outputs are handed to you full of NaN), from -inf minus -inf, or from 0 / 0."""
    case = map_case(draw, [16], heads=heads, kv_heads=kv_heads, page=16, num_pages=2, peak=1)
    finite(run_kernel(answer.paged_decode_kernel, case), "the output", OUT_AXES)


@KERNEL.check("gives every query head its KV head", heads=(2, 6, 6), kv_heads=(1, 3, 2))
def reads_its_kv_head(answer: Any, draw: Draw, heads: int, kv_heads: int) -> None:
    """Query heads `kv_head * G` to `kv_head * G + G - 1` share a KV head: neighbours. In the cache, too, the KV
    head says which part of a block is read."""
    case = map_case(draw, [16], heads=heads, kv_heads=kv_heads, page=16, num_pages=2)
    compare_kv_heads(case, run_kernel(answer.paged_decode_kernel, case))


class FirstKVHead:
    """A kernel that is launched for KV head 0 alone."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        return self.kernel[grid[0], 1]


@KERNEL.check("leaves the rows of other programs alone", heads=(2, 9), kv_heads=(2, 3))
def leaves_other_heads_alone(answer: Any, draw: Draw, heads: int, kv_heads: int) -> None:
    """A tile has more rows than the group has heads: only `offs_m < G` hold a query of this program."""
    # Programs run at the same time: what one writes into another's row is there by chance, and by chance is right.
    case = map_case(draw, [16, 9], heads=heads, kv_heads=kv_heads, page=16, num_pages=3)
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


@KERNEL.check("finds the blocks", length=(16, 32))
def finds_the_pages(answer: Any, draw: Draw, length: int) -> None:
    """Each position asks the table for its own block, `positions // PAGE`, and stands at `positions % PAGE` in the
    block that it gets. A tile may span several blocks."""
    case = map_case(draw, [length], heads=2, kv_heads=1, page=4, num_pages=10)
    compare_reads(case, run_kernel(answer.paged_decode_kernel, case, block_n=length))


@KERNEL.check("keeps sequences apart")
def keeps_sequences_apart(answer: Any, draw: Draw) -> None:
    """Every sequence has a row of the table of its own, and `table_ptr` points at it."""
    case = map_case(draw, [16, 16], heads=2, kv_heads=1, page=4, num_pages=10)
    compare_reads(case, run_kernel(answer.paged_decode_kernel, case))


@KERNEL.check("stops at the last token", lengths=([5], [8], [1], [3, 11, 9]))
def stops_at_the_last_token(answer: Any, draw: Draw, lengths: list[int]) -> None:
    """Positions 0 to seq_len - 1 exist. The last tile is seldom full: what is past the end is masked when loading,
    and its score is set to minus infinity (a score of 0 is a weight like any other)."""
    case = map_case(draw, lengths, heads=2, kv_heads=1, page=4, num_pages=10)
    compare_access(case, run_kernel(answer.paged_decode_kernel, case))


@KERNEL.check("weighs keys by their scores", lengths=([2], [6, 11]))
def weighs_by_softmax(answer: Any, draw: Draw, lengths: list[int]) -> None:
    """The right keys are read. `qk_scale` holds the scale times log2(e), so exp2 of the scaled scores is what exp
    of the plain ones would be; in the end, weights add up to one."""
    case = map_case(draw, lengths, heads=4, kv_heads=2, page=4, num_pages=6, peak=0.7)
    compare_access(case, run_kernel(answer.paged_decode_kernel, case))


@KERNEL.check("carries on from tile to tile", length=(20, 45), scores=("rising", "falling"))
def carries_on_from_tile_to_tile(answer: Any, draw: Draw, length: int, scores: str) -> None:
    """A tile with a larger maximum makes all earlier sums smaller: by 2 to the power of old maximum minus new one."""
    # All heads ask for the same, more or less sharply, so that their scores can rise or fall with the position.
    case = map_case(draw, [length], heads=3, kv_heads=1, page=4, num_pages=13, peak=1)
    case.q[0] = case.q[0, :1] * torch.tensor([[0.5], [1.0], [1.5]])
    slots = case.slots(0)
    keys = torch.stack([case.k_cache[n, 0, s] for n, s in slots])
    for key, (n, s) in zip(keys[(keys @ case.q[0, 0]).argsort(descending=scores == "falling")], slots, strict=True):
        case.k_cache[n, 0, s] = key
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


@KERNEL.check("survives large scores")
def survives_large_scores(answer: Any, draw: Draw) -> None:
    """2 to the power of several hundred is no float: subtract the maximum before exp2."""
    case = random_case(draw, [40, 23], heads=3, kv_heads=1, dim=16, page=8, peak=200)
    expected, _ = naive_decode(case)
    got = run_kernel(answer.paged_decode_kernel, case)
    finite(got, "the output, with scores of several hundred,", OUT_AXES)
    # Scores of several hundred are rounded to 1e-5 or so, and an error of a score is a relative error of its weight.
    compare(got, expected, what="the output, with scores of several hundred,", axes=OUT_AXES, rtol=1e-2, atol=1e-2)


@KERNEL.check("survives any level of scores", score=(-100_000, 100_000))
def survives_any_level(answer: Any, draw: Draw, score: int) -> None:
    """What is masked has a score of minus infinity: any number is larger than some score."""
    # All scores alike, far from 0, and a last tile that is not full: the plain mean of the values.
    case = random_case(draw, [21, 3], heads=3, kv_heads=1, dim=16, page=8)
    case.q.fill_(score / 16 / case.scale)
    case.k_cache.fill_(1.0)
    expected, _ = naive_decode(case)
    got = run_kernel(answer.paged_decode_kernel, case)
    what = f"the output, with all scores at {score:,},"
    compare(got, expected, what=what, axes=OUT_AXES, atol=1e-4)


@KERNEL.check("keeps unused slots out", lengths=([5], [3, 18]))
def keeps_stale_slots_out(answer: Any, draw: Draw, lengths: list[int]) -> None:
    """A weight of 0 times NaN is NaN: what a slot past the end holds must not be loaded at all, neither from K nor
    from V."""
    # What lies past the last token or in other pages is NaN: a page given back is not wiped. Page 0 is all NaN.
    case = random_case(draw, lengths, heads=3, kv_heads=1, dim=16, page=4, first_page=1)
    expected, _ = naive_decode(case)
    used = {slot for sequence in range(len(lengths)) for slot in case.slots(sequence)}
    for cache in (case.k_cache, case.v_cache):
        for page in range(cache.shape[0]):
            for slot in range(case.page):
                if (page, slot) not in used:
                    cache[page, :, slot] = float("nan")
    got = run_kernel(answer.paged_decode_kernel, case)
    finite(got, "the output, with NaN in unused slots,", OUT_AXES)
    compare(got, expected, what="the output, with NaN in unused slots,", axes=OUT_AXES, atol=1e-4)


KERNEL.compiled = partial(matches_a_loop, lengths=[17, 1, 30], heads=9, kv_heads=3, dim=24, page=5)
