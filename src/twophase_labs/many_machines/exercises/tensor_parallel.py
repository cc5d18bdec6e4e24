"""7.3: one layer on several machines: tensor parallelism."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, fresh, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number
from twophase_labs.many_machines.shards_attention import AttentionWeights, attend
from twophase_tools.simulate.model_shapes import MODELS

MLP = exercise(
    "7.4", "Half an MLP each", "split_mlp mlp_part all_reduce mlp_block", points=3, minutes=12, lines=6, difficulty=2
)
MLP.time_limit_s = 10
MLP.objective = "split an MLP so that its ranks need one sum and nothing else"
MLP.hints = (
    "Which of the two products can be cut so that silu sees whole elements, not parts of sums?",
    "Row i of gate and of up makes inner element i, and column i of down uses it: these belong together.",
    "Every rank knows x already. What must be summed is what the ranks computed, not what all of them have.",
)

HIDDEN = 12
NUM_STEPS = 20  # of the run in the notebook: a step for the prompt, and one for each token after the first


def random_mlp(draw: Draw, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """gate and up [width, hidden], down [hidden, width], in float64."""
    return tuple(
        draw.normal(*shape, dtype=torch.float64) / 3 for shape in ((width, HIDDEN), (width, HIDDEN), (HIDDEN, width))
    )  # type: ignore[return-value]


def whole_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def shards_of(answer: Any, mlp: tuple[Tensor, Tensor, Tensor], n: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    shards = answer.split_mlp(*mlp, n)
    if not isinstance(shards, list | tuple) or len(shards) != n:
        reject(f"split_mlp for {n} ranks returned {len(shards) if isinstance(shards, list | tuple) else shards!r}")
    for rank, shard in enumerate(shards):
        if len(shard) != 3 or not all(isinstance(part, torch.Tensor) for part in shard):
            reject(f"the shard of rank {rank} is not three tensors (gate, up, down)")
    return list(shards)


@MLP.check("gives each rank its even share, each weight once", width=(4, 8, 10), n=(2, 1, 3))
def shares_the_weights(answer: Any, draw: Draw, width: int, n: int) -> None:
    """The point is that each rank holds, and reads, an n-th. `tensor_split` cuts as evenly as possible."""
    mlp = random_mlp(draw, width)
    shards = shards_of(answer, mlp, n)
    for index, name in enumerate(("gate", "up", "down")):
        held = sum(shard[index].numel() for shard in shards)
        if held != mlp[index].numel():
            shapes = ", ".join(str(list(shard[index].shape)) for shard in shards)
            reject(f"all ranks together hold {held} weights of {name}, which has {mlp[index].numel()}", shapes)
    sizes = [shard[0].numel() // HIDDEN for shard in shards]
    if max(sizes) - min(sizes) > 1:
        reject(f"the ranks hold {sizes} of the {width} rows of gate; they may differ by one")


@MLP.check("has parts that sum to the whole", width=(4, 8, 10), n=(2, 1, 3))
def sums_to_the_whole(answer: Any, draw: Draw, width: int, n: int) -> None:
    """gate and up by rows (the inner elements), down by columns (the same inner elements). A part has x's shape."""
    mlp, x = random_mlp(draw, width), draw.normal(5, HIDDEN, dtype=torch.float64)
    parts = [answer.mlp_part(x, shard) for shard in shards_of(answer, mlp, n)]
    for rank, part in enumerate(parts):
        if not isinstance(part, torch.Tensor) or part.shape != x.shape:
            shape = list(part.shape) if isinstance(part, torch.Tensor) else part
            reject(f"the part of rank {rank} has shape {shape}, expected that of x, {list(x.shape)}")
    compare(
        torch.stack(parts).sum(0), whole_mlp(x, *mlp), what=f"the sum of the {n} parts", axes=("token", "dimension")
    )


@MLP.check("gives every rank the sum", n=(1, 2, 5))
def reduces(answer: Any, draw: Draw, n: int) -> None:
    """All-reduce: every rank gives one tensor and gets one, the sum of all, in memory of its own."""
    for _ in range(2):
        reduces_once(answer, draw, n)


def reduces_once(answer: Any, draw: Draw, n: int) -> None:
    parts = [draw.normal(3, 4) for _ in range(n)]
    expected = torch.stack(parts).double().sum(0).float()
    with unchanged(**{f"part_{rank}": part for rank, part in enumerate(parts)}):
        totals = answer.all_reduce(parts)
    if not isinstance(totals, list | tuple) or len(totals) != n:
        reject(f"all_reduce of {n} parts must return {n} tensors, one for each rank; it returned {type(totals)}")
    for rank, total in enumerate(totals):
        compare(total, expected, what=f"what rank {rank} gets", axes=("token", "dimension"))
        fresh(total, **{f"part of rank {other}": parts[other] for other in range(n)})
    for rank, total in enumerate(totals[1:], start=1):
        if total.data_ptr() == totals[0].data_ptr():
            reject(f"ranks 0 and {rank} got the same tensor; on two machines there are two")


@MLP.check("adds the residual once", width=(6, 7, 150), n=(2, 4, 9))
def adds_the_residual_once(answer: Any, draw: Draw, width: int, n: int) -> None:
    """If every rank adds x before the sum, the sum has n of it. And each rank has an output of its own."""
    for _ in range(2):  # weights and inputs of one shape, and of other numbers
        mlp, x = random_mlp(draw, width), 10 * draw.normal(4, HIDDEN, dtype=torch.float64)
        with unchanged(x=x):
            outputs = answer.mlp_block(x, shards_of(answer, mlp, n))
        if len(outputs) != n:
            reject(f"mlp_block on {n} ranks must return {n} tensors, one for each; it returned {len(outputs)}")
        expected = x + whole_mlp(x, *mlp)
        for rank, output in enumerate(outputs):
            compare(output, expected, what=f"the output of rank {rank} of {n}", axes=("token", "dimension"))
            fresh(output, x=x, **{f"output of rank {other}": outputs[other] for other in range(rank)})


HEADS = exercise(
    "7.6", "Heads that stay together", "kv_heads_of split_attention", points=3, minutes=16, lines=5, difficulty=2
)
HEADS.time_limit_s, HEADS.is_extra = 10, True
HEADS.objective = "split attention by groups of heads, evenly or not"
HEADS.hints = (
    "A group is one KV head and the G query heads that read it. Cut between groups.",
    "The first `extra` ranks have one more, so that rank r starts after r * base heads and as many more as ranks "
    "before it had an extra one.",
    "Rows of q, k and v are heads times head_dim; o takes the query heads in as *columns*.",
)


def random_attention(draw: Draw, num_heads: int, num_kv_heads: int) -> AttentionWeights:
    """Its head size and the base of its rotation are its own, and no shard's to choose."""
    head_dim, theta = 2 + 2 * (num_heads % 4), 50.0 + num_heads

    def weight(rows: int, columns: int) -> Tensor:
        return draw.normal(rows, columns, dtype=torch.float64) / 2

    q, kv = num_heads * head_dim, num_kv_heads * head_dim
    return AttentionWeights(
        weight(q, HIDDEN),
        weight(kv, HIDDEN),
        weight(kv, HIDDEN),
        weight(HIDDEN, q),
        num_heads,
        num_kv_heads,
        head_dim,
        theta,
    )


def attention_oracle(x: Tensor, w: AttentionWeights) -> Tensor:
    """Head by head, query by query."""
    from twophase_labs.many_machines.shards_attention import rotate

    d = w.head_dim
    total = torch.zeros(len(x), w.o.shape[0], dtype=x.dtype)
    for head in range(w.num_heads):
        kv = head * w.num_kv_heads // w.num_heads
        q = rotate((x @ w.q[head * d : (head + 1) * d].T)[None], w.theta)[0]
        k = rotate((x @ w.k[kv * d : (kv + 1) * d].T)[None], w.theta)[0]
        v = x @ w.v[kv * d : (kv + 1) * d].T
        for t in range(len(x)):
            weights = (k[: t + 1] @ q[t] / d**0.5).softmax(0)
            total[t] += w.o[:, head * d : (head + 1) * d] @ (weights @ v[: t + 1])
    return total


@HEADS.check("deals out the KV heads", num_kv_heads=(2, 3, 8, 7, 3, 71), n=(2, 2, 3, 4, 5, 9))
def kv_heads_as_told(answer: Any, draw: Draw, num_kv_heads: int, n: int) -> None:
    """In order, without gaps, and the first ranks have one more where it does not divide."""
    expected = [part.tolist() for part in torch.arange(num_kv_heads).tensor_split(n)]
    for rank in range(n):
        compare(
            list(answer.kv_heads_of(rank, n, num_kv_heads)),
            expected[rank],
            what=f"the KV heads of rank {rank} of {n}, with {num_kv_heads} in all,",
        )


def split(answer: Any, w: AttentionWeights, n: int) -> list[AttentionWeights]:
    with unchanged(q=w.q, k=w.k, v=w.v, o=w.o):
        shards = answer.split_attention(w, n)
    if not isinstance(shards, list | tuple) or len(shards) != n:
        reject(f"split_attention for {n} ranks must return {n} AttentionWeights; it returned {type(shards).__name__}")
    for rank, shard in enumerate(shards):
        if not isinstance(shard, AttentionWeights):
            reject(f"the shard of rank {rank} is {type(shard).__name__}, expected AttentionWeights")
    return list(shards)


@HEADS.check(
    "cuts the weights at heads",
    num_heads=(2, 4, 9, 6, 66, 132),
    num_kv_heads=(2, 4, 3, 2, 66, 132),
    n=(1, 2, 2, 3, 66, 2),
)
def every_rank_has_its_rows(answer: Any, draw: Draw, num_heads: int, num_kv_heads: int, n: int) -> None:
    """A KV head is head_dim rows of k and of v; its group is G times as many rows of q, and columns of o."""
    w = random_attention(draw, num_heads, num_kv_heads)
    group, d = num_heads // num_kv_heads, w.head_dim
    for rank, (shard, heads) in enumerate(
        zip(split(answer, w, n), torch.arange(num_kv_heads).tensor_split(n), strict=True)
    ):
        kv = len(heads)
        expected = replace(shard, num_heads=kv * group, num_kv_heads=kv, head_dim=d, theta=w.theta)
        for name in ("num_heads", "num_kv_heads", "head_dim", "theta"):
            compare(getattr(shard, name), getattr(expected, name), what=f"{name} of rank {rank} of {n}")
        shapes = {"q": (kv * group * d, HIDDEN), "k": (kv * d, HIDDEN), "v": (kv * d, HIDDEN)}
        for name, shape in (shapes | {"o": (HIDDEN, kv * group * d)}).items():
            compare(tuple(getattr(shard, name).shape), shape, what=f"the shape of {name} on rank {rank} of {n}")


@HEADS.check("has parts that sum to the whole", num_heads=(2, 9, 10), num_kv_heads=(2, 3, 5), n=(2, 2, 4))
def parts_sum_to_attention(answer: Any, draw: Draw, num_heads: int, num_kv_heads: int, n: int) -> None:
    """Is every query head on the rank that has its KV head, and does o take in the columns of just these heads?"""
    w = random_attention(draw, num_heads, num_kv_heads)
    x = 2 * draw.normal(6, HIDDEN, dtype=torch.float64)
    total = torch.stack([attend(x, shard) for shard in split(answer, w, n)]).sum(0)
    finite(total, what="the sum of the parts", axes=("token", "dimension"))
    compare(
        total,
        attention_oracle(x, w),
        what=f"the sum of {n} parts of {num_heads} heads over {num_kv_heads} KV heads",
        axes=("token", "dimension"),
    )


def num_all_reduces() -> int:
    return 2 * MODELS["smollm2-135m"].num_layers * NUM_STEPS


GUESS_7_5 = exercise("7.5", "How often must they talk?", kind="prediction", points=1, minutes=3)
GUESS_7_5.objective = "count the all-reduces of a generation"
GUESS_7_5.question = Number(
    num_all_reduces,
    rel=0,
    unit="all-reduces",
    hint="How many in a layer, how many layers, and how many steps for a prompt and 20 tokens?",
)
