"""From scores to weights, and a token drawn from each row: top-k, top-p and min-p by one threshold, without sorting.

A weight is a token's probability over that of its row's best token. Each filter keeps the tokens whose weight reaches
some lowest weight, which k tokens (top-k), or tokens of a share p of the mass (top-p), reach. Bisection over the bits
of a float, whose order is the floats', finds it in some 30 passes over the row, all but the first from the cache.

Masses are whole numbers, 2^40 for the heaviest token: their sums are exact in any order. So the same weights give the
same draw on every device. Tokens of less than 2^-40 of the heaviest are never drawn; 10^5 of them would have a mass of
10^-7.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import tl, triton
from twophase_kernels.arguments import check_arguments

ONE = tl.constexpr(0x3F800000)  # the bits of 1.0, the largest weight
UNIT = tl.constexpr(float(2**40))
MIN_SCORE = tl.constexpr(-28.0)  # of which the weight is below 1 / UNIT; exp near underflow is slow on some processors
BLOCK = 4096


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "best_ptr", "temperature_ptr"])
def weigh_kernel(
    scores_ptr,  # fp32 [R, V]
    scores_stride,  # from row to row
    rows_ptr,  # int64 [N]
    best_ptr,  # fp32 [R]
    temperature_ptr,  # fp32 [N]
    out_ptr,  # fp32 [N, V]
    vocab_size,
    BLOCK: tl.constexpr,
):
    """One program: a block of tokens of one of the N rows."""
    i = tl.program_id(0).to(tl.int64)
    row, temperature = tl.load(rows_ptr + i), tl.load(temperature_ptr + i)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(scores_ptr + row * scores_stride + offs, mask=offs < vocab_size, other=0.0)
    # Relative to the best token, so that a small temperature cannot overflow: 0 stays 0, other scores may reach -inf.
    relative = (scores - tl.load(best_ptr + row)) / temperature
    tl.store(out_ptr + i * vocab_size + offs, tl.exp(tl.maximum(relative, MIN_SCORE)), mask=offs < vocab_size)


@triton.jit
def _total(row_ptr, vocab_size, lowest, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """How many weights of a row have bits of at least `lowest`, or their mass."""
    total = tl.full([], 0, tl.int64)
    for start in range(0, vocab_size, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        weights = tl.load(row_ptr + offs, mask=offs < vocab_size, other=0.0)
        is_kept = weights.to(tl.int32, bitcast=True) >= lowest
        if COUNTS:
            total += tl.sum(is_kept.to(tl.int32), axis=0)  # `lowest` is never 0 here
        else:
            total += tl.sum(tl.where(is_kept, weights * UNIT, 0.0).to(tl.int64), axis=0)
    return total


@triton.jit
def _lowest(row_ptr, vocab_size, wanted, lowest, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """The bits of the largest weight, at least `lowest`, that tokens with a total of `wanted` reach."""
    beyond = tl.full([], ONE + 1, tl.int32)
    while beyond - lowest > 1:
        middle = lowest + (beyond - lowest) // 2
        if _total(row_ptr, vocab_size, middle, COUNTS, BLOCK) >= wanted:
            lowest = middle
        else:
            beyond = middle
    return lowest


@triton.jit(
    do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr", "row_of_draw_ptr", "u_ptr"],
)
def draw_kernel(
    weights_ptr,  # fp32 [R, V]
    top_k_ptr,  # fp64 [R], 0: all tokens; like the next two
    top_p_ptr,
    min_p_ptr,
    row_of_draw_ptr,  # int64 [D]
    u_ptr,  # fp64 [D]
    out_ptr,  # int64 [D]
    vocab_size,
    BLOCK: tl.constexpr,
):
    """One program: a draw."""
    draw = tl.program_id(0)
    row = tl.load(row_of_draw_ptr + draw)
    row_ptr = weights_ptr + row * vocab_size
    top_k, top_p = tl.load(top_k_ptr + row).to(tl.int64), tl.load(top_p_ptr + row)
    lowest = tl.full([], 0, tl.int32)
    if top_k > 0:
        lowest = _lowest(row_ptr, vocab_size, top_k, lowest, True, BLOCK)
    if top_p < 1:
        mass = _total(row_ptr, vocab_size, lowest, False, BLOCK)
        lowest = _lowest(row_ptr, vocab_size, tl.ceil(mass * top_p).to(tl.int64), lowest, False, BLOCK)
    lowest = tl.maximum(lowest, tl.load(min_p_ptr + row).to(tl.float32).to(tl.int32, bitcast=True))
    mass = _total(row_ptr, vocab_size, lowest, False, BLOCK)
    target = tl.minimum((tl.load(u_ptr + draw) * mass).to(tl.int64), mass - 1)
    found = tl.full([], 0, tl.int64)
    before = tl.full([], 0, tl.int64)
    for start in range(0, vocab_size, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        weights = tl.load(row_ptr + offs, mask=offs < vocab_size, other=0.0)
        masses = tl.where(weights.to(tl.int32, bitcast=True) >= lowest, weights * UNIT, 0.0).to(tl.int64)
        found += tl.sum((before + tl.cumsum(masses, axis=0) <= target).to(tl.int32), axis=0)
        before += tl.sum(masses, axis=0)
    tl.store(out_ptr + draw, tl.minimum(found, vocab_size - 1))  # beyond it only in a row of NaN


def weigh(scores: Tensor, rows: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """Weights fp32 [N, V] of N of the R rows: exp((score - best) / temperature), at least exp(-28). Never waits.

    Args:
        scores: fp32 [R, V], each row contiguous.
        rows: int64 [N].
        best: fp32 [R], each row's largest score.
        temperature: fp32 [N], above 0.

    Raises:
        ValueError: An argument breaks one of these rules.
        KernelsUnavailableError: No kernel can run here.
    """
    check_arguments(
        scores=(scores, "R | V", torch.float32),
        rows=(rows, "N", torch.int64),
        best=(best, "R", torch.float32),
        temperature=(temperature, "N", torch.float32),
    )
    vocab_size = scores.shape[1]
    out = scores.new_empty(len(rows), vocab_size)
    if out.numel():
        grid = len(rows), triton.cdiv(vocab_size, BLOCK)
        weigh_kernel[grid](scores, scores.stride(0), rows, best, temperature, out, vocab_size, BLOCK=BLOCK, num_warps=8)
    return out


def draw_tokens(weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, row_of_draw: Tensor, u: Tensor) -> Tensor:
    """Token ids int64 [D]: for each draw the first token whose cumulative mass exceeds u of its row's. Never waits.

    Args:
        weights: fp32 [R, V], contiguous, in [0, 1]; a token's probability over that of its row's best token.
        top_k, top_p, min_p: fp64 [R]; 0, 1 and 0 keep all tokens. Top-p is of the mass that top-k leaves.
        row_of_draw: int64 [D].
        u: fp64 [D], in [0, 1).

    Raises:
        ValueError: An argument breaks one of these rules.
        KernelsUnavailableError: No kernel can run here.
    """
    check_arguments(
        weights=(weights, "R V", torch.float32),
        top_k=(top_k, "R", torch.float64),
        top_p=(top_p, "R", torch.float64),
        min_p=(min_p, "R", torch.float64),
        row_of_draw=(row_of_draw, "D", torch.int64),
        u=(u, "D", torch.float64),
    )
    out = torch.empty_like(row_of_draw)
    if out.numel():
        draw_kernel[(out.numel(),)](
            weights, top_k, top_p, min_p, row_of_draw, u, out, weights.shape[1], BLOCK=BLOCK, num_warps=8
        )
    return out


def weigh_reference(scores: Tensor, rows: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """Reference for `weigh` in plain torch."""
    relative = (scores[rows] - best[rows][:, None]) / temperature[:, None]
    return relative.clamp_min(MIN_SCORE.value).exp()


def draw_tokens_reference(
    weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, row_of_draw: Tensor, u: Tensor
) -> Tensor:
    """Reference for `draw_tokens` in plain torch, by sorting."""
    masses = (weights * UNIT.value).long()
    ordered, order = weights.sort(dim=-1, descending=True)
    kth = ordered.gather(1, (top_k.long().clamp(max=weights.shape[1]) - 1).clamp_min(0)[:, None])
    kth = torch.where(top_k[:, None] > 0, kth, 0.0)
    left = masses.gather(1, order).where(ordered >= kth, 0)
    wanted = (left.sum(-1) * top_p).ceil().long()[:, None]
    last = (left.cumsum(-1) < wanted).sum(-1, keepdim=True).clamp(max=weights.shape[1] - 1)
    nucleus = torch.where(top_p[:, None] < 1, ordered.gather(1, last), 0.0)
    lowest = torch.maximum(torch.maximum(kth, nucleus), min_p.float()[:, None])
    cdf = masses.where(weights >= lowest, 0).cumsum(-1)[row_of_draw]
    total = cdf[:, -1:]
    target = (u[:, None] * total).long().minimum(total - 1)
    return torch.searchsorted(cdf, target, right=True).squeeze(1)
