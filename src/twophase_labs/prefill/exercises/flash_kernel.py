"""2.7 FlashAttention's forward pass for one head, from an empty body."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from twophase_labs.kit.guarded import require_stored, run_guarded
from twophase_labs.kit.weights_map import compare_weights
from twophase_labs.machine.checks import Draw, compare, finite
from twophase_labs.machine.exercise import exercise
from twophase_labs.prefill.launch import launch_flash_attention

FLASH = exercise(
    "2.7", "FlashAttention in one kernel", "flash_attention_kernel", "kernel", points=6, minutes=30, lines=22
)
FLASH.difficulty, FLASH.time_limit_s = 3, 60
FLASH.objective = (
    "write exact attention by tiles as one kernel: the loop, both products, the running softmax, the store"
)
FLASH.hints = (
    "It is `tiled_attention` (2.5) without its outer loop: the grid stands in for it. Write down, for L = 40 and "
    "tiles of 16: which rows has program 2, which of them exist, and which key tiles does it need?",
    "Before the loop: rows, q under a mask, and the state: row_max of minus infinity, row_sum of 0, acc of 0. In the "
    "loop: load k and v under a mask; scores by `tl.dot(q, tl.trans(k), input_precision='ieee')` times qk_scale; "
    "minus infinity where a key is later than its row; then the five lines of 2.5, with `tl.max(..., axis=1)`, "
    "`tl.sum(..., axis=1)`, `tl.exp2` and a second `tl.dot`. After it: one division, and two stores.",
    "Skeleton:\n"
    "rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)\n"
    "offs_d = tl.arange(0, BLOCK_D)\n"
    "mask_q = ...\n"
    "q = tl.load(q_ptr + rows[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)\n"
    "row_max = tl.full([BLOCK_M], float('-inf'), tl.float32)\n"
    "row_sum = ...\n"
    "acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)\n"
    "hi = tl.minimum(..., L)                # no row sees a key from here on\n"
    "for start in range(0, hi, BLOCK_N):\n"
    "    keys = start + tl.arange(0, BLOCK_N)\n"
    "    mask_kv = ...\n"
    "    k = tl.load(...)\n"
    "    v = tl.load(...)\n"
    "    scores = tl.dot(...) * qk_scale\n"
    "    scores = tl.where(..., scores, float('-inf'))\n"
    "    new_max = ...\n"
    "    p = ...\n"
    "    rescale = ...\n"
    "    ...\n"
    "tl.store(out_ptr + ..., acc / row_sum[:, None], mask=mask_q)\n"
    "tl.store(lse_ptr + rows, ..., mask=...)",
)

AXES = ("row", "element")


def launch_of(answer: Any, scale: float, tiles: tuple[int, int]) -> Callable[..., None]:
    def launch(**tensors: Tensor) -> None:
        kernel = answer.flash_attention_kernel
        launch_flash_attention(kernel, **tensors, scale=scale, block_m=tiles[0], block_n=tiles[1])

    return launch


def attend(answer: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, tiles: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(out, LSE) of the learner's kernel."""
    inputs, outputs = {"q": q, "k": k, "v": v}, {"out": torch.empty_like(q), "lse": torch.empty(len(q))}
    launch = launch_of(answer, scale, tiles)
    got = run_guarded(launch, inputs, outputs)
    if got["out"].isnan().any():
        require_stored(launch, inputs, outputs, "out", [f"row {row}" for row in range(len(q))])
    return got["out"], got["lse"]


def by_rows(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention and the base-2 LSE, a row at a time in float64."""
    out, lse = torch.zeros_like(q, dtype=torch.float64), torch.zeros(len(q), dtype=torch.float64)
    for row in range(len(q)):
        scores = k[: row + 1].double() @ q[row].double() * scale
        out[row] = scores.softmax(0) @ v[: row + 1].double()
        lse[row] = scores.logsumexp(0) / math.log(2)
    return out.float(), lse.float()


def head(draw: Draw, length: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one head; q is large enough that the softmax is far from uniform."""
    return 3 * draw.normal(length, width), draw.normal(length, width), draw.normal(length, width)


@FLASH.check(
    "sees the keys up to its own",
    length=(4, 16, 7, 40),
    tiles=((16, 16), (16, 16), (16, 32), (16, 16)),
    scores=("none", "none", "any", "none"),
)
def sees_its_keys(answer: Any, draw: Draw, length: int, tiles: tuple[int, int], scores: str) -> None:
    """Row r of the prompt sees keys 0 to r, its own too. The rows of a program begin at program_id * BLOCK_M, the keys
    of a turn where the loop stands. NaN comes from a masked load without `other=0.0`, or from minus infinity less minus
    infinity; a wrong weight from `qk_scale`, `tl.exp2`, the sum's axis or the division by row_sum."""
    q, k, _ = head(draw, length, 64)
    q = q * (scores == "any") / 3
    v = torch.eye(length, 64)  # one-hot values: the output is the weights
    expected, _ = by_rows(q, k, v, 0.125)
    got, _ = attend(answer, q, k, v, 0.125, tiles)
    compare_weights(
        got[:, :length],
        expected[:, :length],
        rows=[f"row {row}" for row in range(length)],
        columns=[f"key {key}" for key in range(length)],
        bounds=range(tiles[1], length, tiles[1]),
        title="weights",
    )


@FLASH.check("rescales old tiles", scores=("falling", "rising"))
def rescales_old_tiles(answer: Any, draw: Draw, scores: str) -> None:
    """A tile with a larger maximum makes row_sum and acc smaller, by 2 to the power of old maximum less new one.
    Where the difference is tiny, look at acc's type: it stays float32."""
    q, k, v = head(draw, 50, 16)
    q = q[:1].expand(50, -1).contiguous()
    k = k[(k @ q[0]).argsort(descending=scores == "falling")].contiguous()
    expected, _ = by_rows(q, k, v, 0.25)
    got, _ = attend(answer, q, k, v, 0.25, (16, 16))
    compare(got, expected, what=f"the attention with {scores} scores", axes=AXES, atol=1e-4)


@FLASH.check(
    "matches attention row by row",
    {"length": 1, "width": 16, "tiles": (16, 16)},
    {"length": 33, "width": 24, "tiles": (32, 16)},
    {"length": 100, "width": 64, "tiles": (16, 32)},
    {"length": 130, "width": 8, "tiles": (64, 32)},
)
def matches_by_rows(answer: Any, draw: Draw, length: int, width: int, tiles: tuple[int, int]) -> None:
    """What changes here: L that is no multiple of a tile, D below BLOCK_D, tiles that are not square. Both axes of q, k
    and v are masked, and so is the store. The loop reaches the last row's own key, with L = 1 too."""
    q, k, v = head(draw, length, width)
    scale = draw.integer(10, 40) / 100
    expected, _ = by_rows(q, k, v, scale)
    got, _ = attend(answer, q, k, v, scale, tiles)
    compare(got, expected, what="the attention", axes=AXES, atol=1e-4)


@FLASH.check("survives any level of scores", score=(-100_000, 100_000))
def survives_any_level(answer: Any, draw: Draw, score: int) -> None:
    """The maximum is subtracted before exp2, and begins at minus infinity; a hidden score is minus infinity too."""
    q, k, v = torch.full((21, 16), score / 16), torch.ones(21, 16), draw.normal(21, 16)
    means = v.cumsum(0) / torch.arange(1, 22)[:, None]
    got, _ = attend(answer, q, k, v, 1.0, (16, 16))
    what = f"the attention with all scores at {score:,}"
    finite(got, what, AXES)
    compare(got, means, what=what, axes=AXES, rtol=1e-2, atol=1e-2)


@FLASH.check("loads no tile above the diagonal", length=(40, 64))
def loads_no_hidden_tile(answer: Any, draw: Draw, length: int) -> None:
    """Keys from the end of the program's own rows on are not loaded: neither a mask on the scores nor a weight of 0
    helps against NaN in v, and every such tile is a waste."""
    q, k, v = head(draw, length, 16)
    expected, _ = by_rows(q, k, v, 0.25)
    k[32:], v[32:] = math.nan, math.nan  # from the third tile of rows on
    got, _ = attend(answer, q, k, v, 0.25, (16, 16))
    what = "the attention of rows 0 to 31, with NaN in k and v from 32 on,"
    compare(got[:32], expected[:32], what=what, axes=AXES, atol=1e-4)


@FLASH.check("takes float16 as well")
def takes_float16(answer: Any, draw: Draw) -> None:
    """Both tiles of a `tl.dot` are of one type: `p.to(v.dtype)`. The state stays float32."""
    q, k, v = (x.half() for x in head(draw, 37, 16))
    expected, _ = by_rows(q, k, v, 0.25)
    got, _ = attend(answer, q, k, v, 0.25, (16, 16))
    compare(got, expected.half(), what="the attention in float16", axes=AXES, rtol=2e-2, atol=2e-2)


@FLASH.check("gives the LSE in base 2", length=(1, 37))
def gives_the_lse(answer: Any, draw: Draw, length: int) -> None:
    """It is row_max + log2(row_sum): scores are in base 2 already. It is stored for each row below L, and for none
    from there on."""
    q, k, v = head(draw, length, 16)
    _, expected = by_rows(q, k, v, 0.25)
    _, got = attend(answer, q, k, v, 0.25, (16, 16))
    compare(got, expected, what="the LSE", axes=("row",), atol=1e-4)


FLASH.compiled = partial(matches_by_rows, length=33, width=24, tiles=(32, 16))
