"""7.3: one layer on several machines: tensor parallelism."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, fresh, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number
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
