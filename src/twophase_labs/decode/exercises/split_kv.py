"""3.9 and 3.10 Split-KV: partial results and their merge."""

import math
from typing import Any

import torch
from torch import Tensor

from twophase_labs.decode.decode_cases import AXES, DecodeCase, map_case, naive_decode, random_case, slot_order
from twophase_labs.decode.launch import launch_paged_decode_split
from twophase_labs.kit.guarded import run_guarded
from twophase_labs.kit.weights_map import compare_weights
from twophase_labs.machine.checks import Draw, compare, finite, fresh, lasting, reject, unchanged
from twophase_labs.machine.exercise import exercise

SPLIT = exercise(
    "3.9", "Attention over a split of the keys", "paged_decode_split_kernel", "kernel", points=4, minutes=8, lines=5
)
SPLIT.time_limit_s, SPLIT.difficulty = 60, 3
SPLIT.objective = "divide one sequence's keys among programs, so that the parts can be merged"
SPLIT.hints = (
    "Take 37 keys, tiles of 16 and 4 splits on paper: how many tiles are there, how many does a split get, and "
    "where does each split begin and end?",
    "Splits 0, 1 and 2 have positions 0-15, 16-31 and 32-36. The fourth would begin past the end: its loop does not "
    "turn once, and `row_sum` is 0.",
    "Without keys `row_sum` and `acc` are 0: `tl.where(row_sum == 0, ..., ...)` gives any number above 0 to divide "
    "by. The LSE is `row_max + tl.log2(...)`: the maximum was taken out of the sum, and comes back.",
)

TILE = 16
ROW_AXES = ("sequence", "head", "split")


def run_split_kernel(kernel: Any, case: DecodeCase, num_splits: int, tile: int = TILE) -> tuple[Tensor, Tensor]:
    def launch(**tensors: Tensor) -> object:
        return launch_paged_decode_split(kernel, **tensors, scale=case.scale, num_splits=num_splits, block_n=tile)

    sequences, heads, dim = case.q.shape
    outputs = {
        "partial": torch.empty(sequences, heads, num_splits, dim),
        "lse": torch.empty(sequences, heads, num_splits),
    }
    got = run_guarded(launch, case.inputs, outputs)
    return got["partial"], got["lse"]


def shares(length: int, num_splits: int, tile: int = TILE) -> list[range]:
    """The positions of each split, dealt out tile by tile."""
    tiles = [range(start, min(start + tile, length)) for start in range(0, length, tile)]
    per_split = math.ceil(len(tiles) / num_splits)
    dealt = [tiles[i * per_split : (i + 1) * per_split] for i in range(num_splits)]
    return [range(mine[0].start, mine[-1].stop) if mine else range(0) for mine in dealt]


def compare_shares(case: DecodeCase, partial: Tensor, num_splits: int, tile: int = TILE) -> None:
    """Reject partial outputs of `map_case` (its queries 0) unless each split read its share, with a map."""
    heads = case.q.shape[1]
    group = heads // case.k_cache.shape[1]
    for sequence, length in enumerate(case.lengths):
        order, names = slot_order(case, sequence)
        expected = torch.zeros(heads, num_splits, len(order))
        for head in range(heads):
            first = head // group * len(order) * group // heads  # the columns of its KV head
            for split, positions in enumerate(shares(length, num_splits, tile)):
                for position in positions:
                    expected[head, split, first + position] = 1 / len(positions)
        several = heads > 1
        compare_weights(
            partial[sequence][..., order].flatten(0, 1),
            expected.flatten(0, 1),
            rows=[f"head {h}, split {s}" if several else f"split {s}" for h in range(heads) for s in range(num_splits)],
            columns=names,
            row_axis="query head and split" if several else "split",
            column_axis="key: own blocks in order, then the others",
            bounds=range(case.page, len(order), case.page),
            title=f"sequence {sequence}" if len(case.lengths) > 1 else "weights",
        )


@SPLIT.check(
    "shares out the keys",
    {"lengths": [16], "splits": 1},
    {"lengths": [48], "splits": 3},
    {"lengths": [70], "splits": 2},
    {"lengths": [40, 56], "splits": 2},
    {"lengths": [150], "splits": 5},
    {"lengths": [70], "splits": 2, "tile": 32},
)
def shares_out_the_keys(answer: Any, draw: Draw, lengths: list[int], splits: int, tile: int = TILE) -> None:
    """Tiles are counted first, the last one rounded up to a whole; then they are divided by the splits, rounded up
    again. Every key is read by one split, and none past the end."""
    num_pages = sum(-(-n // 8) for n in lengths) + 1
    case = map_case(draw, lengths, heads=1, kv_heads=1, page=8, num_pages=num_pages)
    compare_shares(case, run_split_kernel(answer.paged_decode_split_kernel, case, splits, tile)[0], splits, tile)


@SPLIT.check("stores each row in its place")
def stores_each_row_in_its_place(answer: Any, draw: Draw) -> None:
    """Partial results are [B, H, splits, D]: a head's splits stand beside each other."""
    case = map_case(draw, [20, 32], heads=4, kv_heads=2, page=8, num_pages=8)
    compare_shares(case, run_split_kernel(answer.paged_decode_split_kernel, case, 2)[0], 2)


@SPLIT.check("says when it has no keys", lengths=([37], [5, 70], [20, 0]), splits=(4, 4, 2))
def says_when_it_has_no_keys(answer: Any, draw: Draw, lengths: list[int], splits: int) -> None:
    """A split without keys has a row_sum of 0 and a row_max of -inf. 0 / 0 is NaN; it should hand over an output of
    0 and an LSE of -inf."""
    num_pages = sum(-(-n // 8) for n in lengths) + 1
    case = map_case(draw, lengths, heads=1, kv_heads=1, page=8, num_pages=num_pages)
    partial, lse = run_split_kernel(answer.paged_decode_split_kernel, case, splits)
    compare_shares(case, partial, splits)
    for sequence, length in enumerate(lengths):
        for split, positions in enumerate(shares(length, splits)):
            if not positions:
                what = f"the LSE of split {split} of sequence {sequence}, which has no keys,"
                compare(lse[sequence, :, split], torch.full((1,), -math.inf), what=what, axes=("head",))


@SPLIT.check("counts its keys", lengths=([16], [37]), splits=(1, 2))
def counts_its_keys(answer: Any, draw: Draw, lengths: list[int], splits: int) -> None:
    """The LSE is the maximum plus log2 of the sum. Base 2, like the scores: log2 of 16 is 4."""
    # With queries of 0 all scores are 0, and the LSE is log2 of how many keys there are.
    num_pages = sum(-(-n // 8) for n in lengths) + 1
    case = map_case(draw, lengths, heads=1, kv_heads=1, page=8, num_pages=num_pages)
    _, lse = run_split_kernel(answer.paged_decode_split_kernel, case, splits)
    counts = [[len(positions) for positions in shares(length, splits)] for length in lengths]
    what = "the LSE, log2 of the number of keys when all scores are 0,"
    compare(lse[:, 0], torch.tensor(counts).log2(), what=what, axes=("sequence", "split"))


@SPLIT.check("adds up to the whole", lengths=([20], [33, 1, 50]), heads=(1, 6), kv_heads=(1, 2), splits=(1, 3))
def adds_up_to_the_whole(answer: Any, draw: Draw, lengths: list[int], heads: int, kv_heads: int, splits: int) -> None:
    """Counting works, weighing does not: does the maximum belong to the LSE?"""
    case = random_case(draw, lengths, heads=heads, kv_heads=kv_heads, dim=24, page=5)
    out, lse = naive_decode(case)
    partial, partial_lse = run_split_kernel(answer.paged_decode_split_kernel, case, splits)
    finite(partial, "a partial output", AXES["partial"])
    what = "the LSE of all splits together"
    compare(logsumexp2(partial_lse).float(), lse, what=what, axes=("sequence", "head"), atol=1e-4)
    merged = merge(partial, partial_lse)
    compare(merged, out, what="the output of all splits together", axes=AXES["out"], atol=1e-4)


@SPLIT.check("keeps the level of the scores", score=(300, -300))
def keeps_the_level(answer: Any, draw: Draw, score: int) -> None:
    """2 to the power of several hundred is no float: the maximum stays outside of the logarithm, and is added to it."""
    case = random_case(draw, [21, 40], heads=3, kv_heads=1, dim=16, page=8)
    case.level_scores(score)  # far from 0, and so is the LSE
    out, lse = naive_decode(case)
    partial, partial_lse = run_split_kernel(answer.paged_decode_split_kernel, case, 2)
    finite(partial_lse[1], f"an LSE, with all scores at {score:,},", ("head", "split"))
    what = f"the LSE of all splits together, with all scores at {score:,},"
    compare(logsumexp2(partial_lse).float(), lse, what=what, axes=("sequence", "head"), atol=0.1)
    what = f"the output of all splits together, with all scores at {score:,},"
    compare(merge(partial, partial_lse), out, what=what, axes=AXES["out"], rtol=1e-2, atol=1e-2)


@SPLIT.check("keeps unused slots out")
def keeps_unused_slots_out(answer: Any, draw: Draw) -> None:
    """`hi` is all that `attend_tiles` knows of the end: it must never be past the last token."""
    case = random_case(draw, [21, 3], heads=3, kv_heads=1, dim=16, page=4, first_page=1)
    expected, _ = naive_decode(case)
    case.spoil_unused_slots()
    partial, lse = run_split_kernel(answer.paged_decode_split_kernel, case, 3)
    finite(partial, "a partial output, with NaN in unused slots,", AXES["partial"])
    what = "the output of all splits together, with NaN in unused slots,"
    compare(merge(partial, lse), expected, what=what, axes=AXES["out"], atol=1e-4)


MERGE = exercise(
    "3.10", "Merging the splits", "merge_splits", points=4, minutes=8, lines=7, difficulty=2, time_limit_s=20
)
MERGE.objective = "merge partial softmaxes exactly, empty ones included"
MERGE.hints = (
    "Two splits of 16 and 5 keys with scores of 0: LSE 4 and 2.32. What should each weigh?",
    "Weights are 2^(LSE - m), divided by their sum: a softmax over the splits, in base 2. -inf is a good LSE for "
    "what is not there, since 2^-inf is 0; but -inf minus -inf is NaN, and so is 0 times NaN.",
    "m = ...  # the largest LSE of each row; where that is -inf, 0\nweights = torch.exp2(lse - m[..., None])\n"
    "partial = ...  # with what empty splits left replaced by 0\ntotal = ...  # 0 if every split is empty\n"
    "out = ... / ...  # not 0 / 0\nreturn out, m + total.log2()",
)


def logsumexp2(lse: Tensor) -> Tensor:
    return (lse.double() * math.log(2)).logsumexp(-1) / math.log(2)


def merge(partial: Tensor, lse: Tensor) -> Tensor:
    weights = (lse.double() * math.log(2)).softmax(-1)
    return (weights[..., None] * partial.double()).sum(-2).float()


def run_merge(answer: Any, partial: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Its two results, of the right shapes. It gets copies: what it does to its inputs is looked at on its own."""
    got = answer.merge_splits(partial.clone(), lse.clone())
    if not isinstance(got, tuple | list) or len(got) != 2:
        reject("merge_splits returns two tensors, the output and its LSE", f"got {type(got).__name__}")
    wanted = (tuple(partial.shape[:2] + partial.shape[3:]), tuple(lse.shape[:2]))
    for what, tensor, shape in zip(("the output", "the LSE"), got, wanted, strict=True):
        if not isinstance(tensor, Tensor):
            reject(f"{what} should be a tensor; it is of type {type(tensor).__name__}")
        if tuple(tensor.shape) != shape:
            reject(
                f"{what} has shape {list(tensor.shape)}, expected {list(shape)}",
                f"for partial results of shape {list(partial.shape)}: sequences, heads, splits, elements",
            )
    return got[0].float(), got[1].float()


@MERGE.check("gives a row per query head", shape=((1, 1, 1, 1), (2, 3, 4, 5), (3, 1, 300, 2)))
def gives_a_row_per_head(answer: Any, draw: Draw, shape: tuple[int, int, int, int]) -> None:
    """The axis of the splits goes; sequences, heads and elements stay, in any number."""
    run_merge(answer, draw.normal(*shape), draw.normal(*shape[:3]))


def compare_split_weights(answer: Any, lse: Tensor, partial: Tensor, expected: Tensor) -> None:
    heads, num_splits = lse.shape[1:]
    got, _ = run_merge(answer, partial, lse)
    compare_weights(
        got[0, :, :num_splits],
        expected,
        rows=[f"query head {head}" for head in range(heads)],
        columns=[f"split {s}, LSE {x:.1f}" if heads == 1 else f"split {s}" for s, x in enumerate(lse[0, 0].tolist())],
        row_axis="query head",
        column_axis="split",
        title="splits",
    )


def unit_rows(heads: int, num_splits: int) -> Tensor:
    """Partial outputs [1, heads, splits, splits + 3]: split s gives the unit vector e_s; an output is the weights."""
    return torch.eye(num_splits, num_splits + 3).expand(1, heads, -1, -1).clone()


@MERGE.check("weighs splits by their keys", num_keys=([16], [16, 5], [4, 1, 1, 2]))
def weighs_splits(answer: Any, draw: Draw, num_keys: list[int]) -> None:
    """A split's weight is 2^(LSE - m), divided by the sum of all weights: 16 keys weigh 16/21, 5 keys 5/21."""
    # Splits whose keys all have a score of 0: each counts as much as it has keys.
    keys = torch.tensor([num_keys], dtype=torch.float64)
    expected = (keys / keys.sum()).float()
    compare_split_weights(answer, keys.log2().float()[None], unit_rows(1, len(num_keys)), expected)


@MERGE.check("weighs each head's splits by themselves", heads=(3, 2), splits=(5, 90))
def weighs_splits_of_every_head(answer: Any, draw: Draw, heads: int, splits: int) -> None:
    """Each head has weights of its own, which add up to one over the splits."""
    lse = 3 * draw.normal(1, heads, splits)
    expected = (lse[0].double() * math.log(2)).softmax(-1).float()
    compare_split_weights(answer, lse, unit_rows(heads, splits), expected)


@MERGE.check("skips empty splits", {"empty": [4]}, {"empty": [0, 3]}, {"empty": [1, 2], "left": math.inf})
def skips_empty_splits(answer: Any, draw: Draw, empty: list[int], left: float = math.nan) -> None:
    """A split without keys has an LSE of -inf and weighs 0; but 0 times what happens to be in its row may be NaN,
    and 0 times infinity is. Replace that row (`torch.where`) before you weigh it."""
    # A program without keys may leave its row of partial results unwritten: anything may be `left` there.
    lse, partial = 2 * draw.normal(1, 2, 5), unit_rows(2, 5)
    lse[:, :, empty], partial[:, :, empty] = -math.inf, left
    expected = (lse[0].double() * math.log(2)).softmax(-1).float()
    compare_split_weights(answer, lse, partial, expected)


@MERGE.check("gives nothing for nothing", splits=(1, 3))
def gives_nothing_for_nothing(answer: Any, draw: Draw, splits: int) -> None:
    """If every split of a row is empty its maximum is -inf, and -inf minus -inf is NaN: subtract something finite
    in that row. Its output is 0, its LSE -inf; other rows are not affected."""
    # Of three heads the middle one has no key at all.
    partial, lse = draw.normal(1, 3, splits, 6), draw.normal(1, 3, splits)
    partial[:, 1], lse[:, 1] = draw.choice((math.nan, math.inf)), -math.inf
    expected = merge(partial.nan_to_num(0, 0), lse).nan_to_num()
    out, total = run_merge(answer, partial, lse)
    compare(out[:, 1], torch.zeros(1, 6), what="the output of a row without any key", axes=("sequence", "element"))
    compare(out, expected, what="the output", axes=AXES["out"], atol=1e-4)
    compare(total[:, 1], torch.full((1,), -math.inf), what="the LSE of a row without any key", axes=("sequence",))


@MERGE.check("merges what attention gives", splits=(1, 5, 3, 70), dim=(16, 24, 16, 3), spread=(1.0, 4.0, 300.0, 2.0))
def merges_what_attention_gives(answer: Any, draw: Draw, splits: int, dim: int, spread: float) -> None:
    """The weights are right: the LSE of all is m plus log2 of the sum of the weights. And 2 to the power of several
    hundred is no float: subtract m first."""
    # Attention over 7 keys per split, split by split and at once, in float64.
    scores, values = spread * draw.normal(2, 3, splits, 7).double(), draw.normal(2, 3, splits, 7, dim).double()
    partial = (scores.softmax(-1)[..., None] * values).sum(-2)
    expected = (scores.flatten(2).softmax(-1)[..., None] * values.flatten(2, 3)).sum(-2)
    lse = scores.logsumexp(-1) / math.log(2)
    out, total = run_merge(answer, partial.float(), lse.float())
    expected_lse = (scores.flatten(2).logsumexp(-1) / math.log(2)).float()
    finite(out, "the output", AXES["out"])
    # A score of several hundred in float32 is off by 1e-5 or so, and its weight by as much.
    compare(out, expected.float(), what="the output", axes=AXES["out"], rtol=1e-3, atol=1e-3)
    compare(total, expected_lse, what="the LSE", axes=("sequence", "head"), atol=1e-3)


@MERGE.check("survives any level of scores", level=(-100_000.0, 100_000.0))
def survives_any_level(answer: Any, draw: Draw, level: float) -> None:
    """Subtract the largest LSE of each row, whatever it is: only differences count."""
    # The LSEs of all splits are alike, and far from 0: the plain mean.
    partial, lse = draw.normal(1, 2, 4, 3), torch.full((1, 2, 4), level)
    out, total = run_merge(answer, partial, lse)
    what = f"the output of four splits with an LSE of {level:,} each"
    # An LSE of 100,000 is rounded to 0.004 when splits are merged one after another: an error of its weight of 0.3 %.
    compare(out, partial.mean(2), what=what, axes=AXES["out"], rtol=1e-2, atol=1e-2)
    compare(total, torch.full((1, 2), level + 2), what="the LSE of these four", axes=("sequence", "head"), atol=0.1)


@MERGE.check("leaves its inputs alone")
def leaves_partials_alone(answer: Any, draw: Draw) -> None:
    """Operations ending in _, and assignments to a part of a tensor, write into the caller's."""
    partial, lse = draw.normal(2, 3, 4, 5), draw.normal(2, 3, 4)
    lse[0, 1, 2], partial[0, 1, 2] = -math.inf, 7.0
    with unchanged(partial=partial, lse=lse):
        answer.merge_splits(partial, lse)


@MERGE.check("gives results of its own", splits=(1, 3))
def gives_results_of_its_own(answer: Any, draw: Draw, splits: int) -> None:
    """A slice of an argument is the caller's memory, also where one split leaves nothing to merge: `.clone()` it.
    And make new tensors in each call."""
    # An engine writes the next layer's partial results over these, and the merged output must not follow.
    partial, lse = draw.normal(2, 3, splits, 5), draw.normal(2, 3, splits)
    out, total = answer.merge_splits(partial, lse)
    for result in (out, total):
        fresh(result, partial=partial, lse=lse)
    with lasting(out=out, lse=total):
        answer.merge_splits(draw.normal(2, 3, splits, 5), draw.normal(2, 3, splits))
