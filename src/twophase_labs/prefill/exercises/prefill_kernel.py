"""2.7 The prefill kernel: one step over a tile, then the whole kernel on pages."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from twophase_labs.kit.guarded import run_guarded
from twophase_labs.kit.weights_map import compare_weights
from twophase_labs.machine.checks import Draw, compare, finite, reject
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.prefill.launch import LOG2_E, launch_attend_tile, launch_paged_prefill
from twophase_labs.prefill.paged_oracle import TABLE_WIDTH, RaggedBatch, paged_attention, poison_unused, ragged_batch
from twophase_labs.prefill.weights import names_of_columns, names_of_rows, page_borders, weighing_batch, weights_of

NUM_ROWS = 16
AXES = {
    "q": ("token", "head", "dim"),
    "out": ("token", "head", "dim"),
    "lse": ("token", "head"),
    "k_cache": ("page", "KV head", "slot", "dim"),
    "v_cache": ("page", "KV head", "slot", "dim"),
    "block_tables": ("sequence", "entry"),
    "seq_lens": ("sequence",),
    "cu_query_lens": ("sequence",),
}


# -- 2.12 --------------------------------------------------------------------------------------------------------------


def fold_tiles(
    answer: Any, q: Tensor, k: Tensor, v: Tensor, row_positions: Tensor, scale: float, block_n: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    """The state that the learner's step ends with, in tiles of `block_n` keys."""
    inputs = {"q": q, "k": k, "v": v, "row_positions": row_positions.int()}
    outputs = {"row_max": torch.empty(len(q)), "row_sum": torch.empty(len(q)), "acc": torch.empty(len(q), q.shape[1])}
    got = run_guarded(
        lambda **t: launch_attend_tile(answer.attend_tile, **t, scale=scale, block_n=block_n), inputs, outputs
    )
    return got["row_max"], got["row_sum"], got["acc"]


def scores_of(q: Tensor, k: Tensor, row_positions: Tensor, scale: float) -> Tensor:
    hidden = torch.arange(len(k)) > row_positions[:, None]
    return (q.double() @ k.double().T * scale).masked_fill(hidden, -math.inf)


def compare_weights_of_tiles(
    answer: Any, draw: Draw, row_positions: Tensor, num_keys: int, block_n: int = 16, score: int = 0
) -> None:
    """With a `score` that is the score of every key, hidden or not."""
    width = max(NUM_ROWS, 1 << (num_keys - 1).bit_length())
    q, k, v = 2 * draw.normal(NUM_ROWS, width), draw.normal(num_keys, width), torch.eye(width)[:num_keys]
    scale = draw.choice((0.5, 0.7, 0.9)) * width**-0.5
    if score:
        q, k = torch.full_like(q, score / width / scale), torch.ones_like(k)
    _, row_sum, acc = fold_tiles(answer, q, k, v, row_positions, scale, block_n)
    compare_weights(
        (acc / row_sum[:, None])[:, :num_keys],
        scores_of(q, k, row_positions, scale).softmax(-1).float(),
        rows=[f"row {i} (sees keys 0 to {p})" for i, p in enumerate(row_positions.tolist())],
        columns=[f"key {j}" for j in range(num_keys)],
        row_axis="query row",
        column_axis="key; lines: where tiles begin",
        bounds=range(block_n, num_keys, block_n),
        title="acc / row_sum",
    )


def weighs_one_tile(answer: Any, draw: Draw) -> None:
    """Twice as many keys as rows: sums along the wrong axis have another shape."""
    compare_weights_of_tiles(answer, draw, torch.full((NUM_ROWS,), 31), 32, block_n=32)


def hides_the_masked(answer: Any, draw: Draw, score: int = 0) -> None:
    compare_weights_of_tiles(answer, draw, draw.permutation(16), 16, score=score)


def carries_the_state(answer: Any, draw: Draw, num_keys: int) -> None:
    positions = draw.integers(0, num_keys, NUM_ROWS)
    positions[0], positions[-1] = 0, num_keys - 1
    compare_weights_of_tiles(answer, draw, positions, num_keys)


def keeps_the_lse(answer: Any, draw: Draw, num_keys: int) -> None:
    q, k, v = 4 * draw.normal(NUM_ROWS, 32), draw.normal(num_keys, 32), draw.normal(num_keys, 32)
    positions = draw.integers(0, num_keys, NUM_ROWS)
    row_max, row_sum, _ = fold_tiles(answer, q, k, v, positions, 32**-0.5)
    expected = scores_of(q, k, positions, 32**-0.5).logsumexp(-1) * LOG2_E
    compare(row_max + row_sum.log2(), expected.float(), what="row_max + log2(row_sum)", axes=("row",))


def leaves_blind_rows(answer: Any, draw: Draw, num_keys: int) -> None:
    q, k, v = draw.normal(NUM_ROWS, 16), draw.normal(num_keys, 16), draw.normal(num_keys, 16)
    positions = torch.where(torch.arange(NUM_ROWS) % 2 == 0, -1, num_keys - 1)
    row_max, row_sum, acc = fold_tiles(answer, q, k, v, positions, 0.25)
    blind = positions < 0
    compare(row_sum[blind], torch.zeros(8), what="row_sum of rows that see no key", axes=("row",))
    compare(acc[blind], torch.zeros(8, 16), what="acc of rows that see no key", axes=("row", "dim"))
    compare(row_max[blind], torch.full((8,), -math.inf), what="row_max of rows that see no key", axes=("row",))
    finite(acc[~blind] / row_sum[~blind, None], "acc / row_sum of the other rows")


def survives_large_scores(answer: Any, draw: Draw, num_keys: int) -> None:
    q, k, v = 300 * draw.normal(NUM_ROWS, 16), draw.normal(num_keys, 16), draw.normal(num_keys, 16)
    positions = torch.full((NUM_ROWS,), num_keys - 1)
    _, row_sum, acc = fold_tiles(answer, q, k, v, positions, 1.0)
    got = acc / row_sum[:, None]
    finite(got, "acc / row_sum with scores of thousands", ("row", "dim"))
    expected = (scores_of(q, k, positions, 1.0).softmax(-1) @ v.double()).float()
    # Scores of some thousands have an absolute rounding error of 1e-3, and so their weights a relative one.
    compare(got, expected, what="acc / row_sum", axes=("row", "dim"), rtol=2e-2, atol=2e-2)


# -- 2.13 --------------------------------------------------------------------------------------------------------------


def prefill(answer: Any, batch: RaggedBatch) -> tuple[Tensor, Tensor]:
    """(out, LSE) of the learner's kernel, with blocks of 16 rows and tiles of 16 keys."""

    def launch(**tensors: Any) -> None:
        launch_paged_prefill(answer.paged_prefill_kernel, **tensors, scale=batch.scale, block_m=16, block_n=16)

    outputs = {"out": torch.empty_like(batch.q), "lse": torch.empty(batch.q.shape[:2])}
    got = run_guarded(launch, batch.tensors, outputs, axes=AXES)
    return got["out"], got["lse"]


def reads_the_right_keys(answer: Any, draw: Draw, query_lens: Sequence[int], cached: Sequence[int]) -> None:
    batch = weighing_batch(draw, query_lens, cached)
    expected, _ = paged_attention(batch)
    got, _ = prefill(answer, batch)
    compare_weights(
        weights_of(batch, got),
        weights_of(batch, expected),
        rows=names_of_rows(batch),
        columns=names_of_columns(batch),
        row_axis="query and its head",
        column_axis="slot, page by page and KV head by KV head",
        bounds=page_borders(batch),
        title="weights",
    )


def matches_a_loop(
    answer: Any,
    draw: Draw,
    query_lens: Sequence[int],
    cached: Sequence[int],
    heads: tuple[int, int],
    head_dim: int,
    page: int,
) -> None:
    width = TABLE_WIDTH + len(query_lens)  # the kernel is told how far the rows of the table are apart
    batch = ragged_batch(draw, query_lens, cached, heads=heads, head_dim=head_dim, page=page, table_width=width)
    expected, _ = paged_attention(batch)
    got, _ = prefill(answer, batch)
    compare(got, expected, what="the attention", axes=("token", "head", "dim"), atol=1e-4)


def leaves_other_rows_alone(answer: Any, draw: Draw) -> None:
    batch = ragged_batch(draw, (2, 3), (0, 2), spare_tokens=3)
    got, lse = prefill(answer, batch)
    if not bool(got[5:].isnan().all()) or not bool(lse[5:].isnan().all()):
        reject("rows of q that belong to no chunk were written", "The chunks end at cu_query_lens[S] = 5.")


def keeps_unused_slots_out(answer: Any, draw: Draw, query_lens: Sequence[int], cached: Sequence[int]) -> None:
    batch = ragged_batch(draw, query_lens, cached)
    poison_unused(batch)
    expected, _ = paged_attention(batch)
    got, _ = prefill(answer, batch)
    compare(
        got, expected, what="the attention, with NaN in all unused slots,", axes=("token", "head", "dim"), atol=1e-4
    )


def gives_the_lse(answer: Any, draw: Draw, query_lens: Sequence[int], cached: Sequence[int]) -> None:
    batch = ragged_batch(draw, query_lens, cached)
    _, expected = paged_attention(batch)
    _, got = prefill(answer, batch)
    compare(got, expected, what="the log-sum-exp", axes=("token", "head"), atol=1e-4)


KEYS = ({"num_keys": 17}, {"num_keys": 37}, {"num_keys": 64})
BATCHES = ({"query_lens": (4,), "cached": (0,)}, {"query_lens": (3, 2), "cached": (0, 6)})

EXERCISES = (
    Exercise(
        id="2.12",
        title="One tile of attention",
        kind="kernel",
        names=("attend_tile",),
        points=4,
        minutes=15,
        lines=8,
        difficulty=2,
        needs=("triton",),
        objective="write one step of online-softmax attention in Triton",
        hints=(
            "Go through it with one row and two tiles on paper: scores 1, 2 and then 4. What is row_sum in the end?",
            "What was summed up before is in units of the old maximum. One factor per row brings it to the new one.",
            "A block `[M]` meets a block `[M, N]` as `x[:, None]`. Reduce over keys with `axis=1`.",
        ),
        checks=(
            Property(
                "weighs the keys of one tile",
                weighs_one_tile,
                "With a single tile this is a softmax: scores are q·k times qk_scale, weights are 2 to the power of "
                "(score minus maximum), sums go over the keys, axis 1.",
            ),
            Property(
                "hides what is masked",
                hides_the_masked,
                "A hidden key has a score of minus infinity, before the maximum is taken.",
            ),
            Property(
                "carries the state from tile to tile",
                carries_the_state,
                "One tile works, several don't. Both the old sum and the old accumulator are rescaled by "
                "2^(old maximum - new maximum), and the maximum is that of all tiles so far.",
                KEYS,
            ),
            Property(
                "keeps the log-sum-exp in base 2",
                keeps_the_lse,
                "row_max is in units of log2, and row_sum counts weights relative to it.",
                ({"num_keys": 16}, {"num_keys": 50}),
            ),
            Property(
                "leaves rows alone that see nothing",
                leaves_blind_rows,
                "Such a row keeps a maximum of minus infinity, and minus infinity minus itself is NaN. "
                "Subtract a maximum that is 0 in these rows.",
                ({"num_keys": 16}, {"num_keys": 40}),
            ),
            Property(
                "survives large scores",
                survives_large_scores,
                "2^1000 is infinite. Whatever is raised to a power has its maximum subtracted first.",
                ({"num_keys": 40},),
            ),
            Property(
                "hides what is masked, whatever the others' scores",
                hides_the_masked,
                "A hidden key has a score of minus infinity: any number is larger than some score.",
                ({"score": -100_000},),
            ),
        ),
    ),
    Exercise(
        id="2.13",
        title="The paged prefill kernel",
        kind="kernel",
        names=("paged_prefill_kernel",),
        points=4,
        minutes=30,
        lines=14,
        difficulty=3,
        needs=("triton",),
        uses=("2.12",),
        time_limit_s=60,
        objective="attend over pages, for a ragged batch of prompt chunks with grouped heads",
        hints=(
            "Look at the map of the first check: are the right rows filled? The right pages? The right slots?",
            "Three counts begin at different places: tokens of the chunk, rows of the flat batch, positions of the "
            "sequence. A chunk's tokens are the last chunk_len of seq_len.",
            "A row of the cache, seen as [N * H_KV * PAGE, D], is found by counting pages, then heads, then slots.",
        ),
        checks=(
            Property(
                "reads the right keys",
                reads_the_right_keys,
                "Each row of the map is one query with one of its heads; head h belongs to KV head h // G. "
                "Compare pages, slots and heads with what was expected.",
                BATCHES,
            ),
            Property(
                "matches attention in a loop",
                matches_a_loop,
                "Small batches are right. What changes here: more tiles than one, more blocks per chunk, "
                "other numbers of heads, a head size that is no power of two.",
                (
                    {"query_lens": (1,), "cached": (0,), "heads": (1, 1), "head_dim": 16, "page": 16},
                    {"query_lens": (7, 1, 12), "cached": (0, 20, 9), "heads": (6, 2), "head_dim": 16, "page": 4},
                    {"query_lens": (33,), "cached": (0,), "heads": (9, 3), "head_dim": 32, "page": 16},
                    {"query_lens": (17, 0, 5), "cached": (3, 0, 40), "heads": (4, 4), "head_dim": 24, "page": 8},
                    {"query_lens": (3, 2), "cached": (150, 0), "heads": (5, 1), "head_dim": 16, "page": 32},
                ),
            ),
            Property(
                "leaves other rows alone",
                leaves_other_rows_alone,
                "The last block of a chunk has rows beyond its end. They must neither be loaded nor stored.",
            ),
            Property(
                "keeps unused slots out",
                keeps_unused_slots_out,
                "A slot that nobody wrote may hold NaN, and a weight of 0 does not help: 0 · NaN is NaN. "
                "Keys from `hi` on must not be loaded.",
                ({"query_lens": (1,), "cached": (0,)}, {"query_lens": (3, 2), "cached": (0, 7)}),
            ),
            Property(
                "gives the log-sum-exp in base 2",
                gives_the_lse,
                "It is row_max + log2(row_sum); both are in units of log2 already.",
                BATCHES,
            ),
        ),
    ),
)
