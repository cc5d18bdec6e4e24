"""7.5: a mixture of experts: who computes which row, and how rows travel between ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, listed, plain, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise
from twophase_labs.machine.questions import Number

MIXTURE = exercise(
    "7.6", "A mixture of experts", "mixture", points=4, minutes=18, lines=9, difficulty=3, time_limit_s=30
)
MIXTURE.objective = "send each token through its own few experts, each expert's weights read once"
MIXTURE.hints = (
    "`topk` gives each token's K logits and experts. A softmax over these K alone equals the softmax over all E, "
    "divided by the sum of the K: the rest of the denominator cancels.",
    "Go over the experts, not over the tokens: `(chosen == e).nonzero(as_tuple=True)` gives the tokens that chose "
    "expert e and which of their choices it was.",
    "logits, chosen = (x @ router.T).topk(k, dim=-1)\n"
    "weights = ...\n"
    "out = torch.zeros_like(x)\n"
    "for e in ...:                       # the experts that some token chose\n"
    "    tokens, choice = (chosen == e).nonzero(as_tuple=True)\n"
    "    out[tokens] += ...\n"
    "return out",
)

HIDDEN = 6


class Expert:
    """A small MLP that notes what it was asked to compute."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.num_rows: list[int] = []

    def __call__(self, rows: Tensor) -> Tensor:
        if not isinstance(rows, torch.Tensor) or rows.ndim != 2 or rows.shape[1] != self.weight.shape[1]:
            shape = list(rows.shape) if isinstance(rows, torch.Tensor) else rows
            reject(f"an expert was called with {shape}, expected rows [n, {self.weight.shape[1]}]")
        self.num_rows.append(len(rows))
        return torch.tanh(rows @ self.weight.T)


def make_experts(
    draw: Draw, num_experts: int, hidden: int = HIDDEN, dtype: torch.dtype = torch.float64
) -> list[Expert]:
    return [Expert(draw.normal(hidden, hidden, dtype=dtype)) for _ in range(num_experts)]


def oracle(x: Tensor, router: Tensor, experts: list[Expert], k: int) -> Tensor:
    """Token by token, expert by expert."""
    out = torch.zeros_like(x)
    for t, row in enumerate(x):
        scores = [float(each) for each in F.softmax(router @ row, -1)]
        chosen = sorted(range(len(experts)), key=lambda e: -scores[e])[:k]
        total = sum(scores[e] for e in chosen)
        for e in chosen:
            out[t] += scores[e] / total * torch.tanh(experts[e].weight @ row)
    return out


def inputs(draw: Draw, num_tokens: int, num_experts: int, hidden: int = HIDDEN) -> tuple[Tensor, Tensor, list[Expert]]:
    x = draw.normal(num_tokens, hidden, dtype=torch.float64)
    return x, draw.normal(num_experts, hidden, dtype=torch.float64), make_experts(draw, num_experts, hidden)


def mixed(answer: Any, x: Tensor, router: Tensor, experts: list[Any], k: int) -> Tensor:
    with unchanged(x=x, router=router):
        got = answer.mixture(x, router, experts, k)
    if not isinstance(got, torch.Tensor) or got.shape != x.shape:
        shape = list(got.shape) if isinstance(got, torch.Tensor) else plain(got)
        reject(f"mixture returned {shape}, expected a tensor of x's shape, {list(x.shape)}")
    return got


@MIXTURE.check("sends each token to its best expert", num_tokens=(1, 5), num_experts=(2, 4))
def one_expert_each(answer: Any, draw: Draw, num_tokens: int, num_experts: int) -> None:
    """With k = 1 the weight is 1: the chosen weights are divided by their sum."""
    # K = 1: the weight is 1, whatever the router's logit. In float32, so that the dtype is the next property's.
    while True:
        x = draw.normal(num_tokens, HIDDEN)
        router = draw.normal(num_experts, HIDDEN)
        first, second = (x @ router.T).topk(2, dim=-1).values.unbind(-1)
        if bool((first - second > 1e-3).all()):  # no rounding decides
            break
    experts = make_experts(draw, num_experts, dtype=torch.float32)
    got = mixed(answer, x, router, experts, 1)
    compare(got, oracle(x, router, experts, 1), what="the output for k=1", axes=("token", "dimension"))


@MIXTURE.check("returns x's dtype", num_tokens=(1, 5))
def has_the_dtype_of_x(answer: Any, draw: Draw, num_tokens: int) -> None:
    """`torch.zeros_like(x)` has the shape and the dtype of x; `torch.zeros(x.shape)` is float32, whatever x is, and
    rounds what is added to it."""
    # As before, in float64.
    x, router, experts = inputs(draw, num_tokens, 3)
    got = mixed(answer, x, router, experts, 1)
    if got.dtype != x.dtype:
        got_name, name = (str(dtype).removeprefix("torch.") for dtype in (got.dtype, x.dtype))
        reject(f"the output is {got_name} for an x of {name}")


@MIXTURE.check(
    "adds up k experts with their weights",
    {"num_tokens": 2, "num_experts": 3, "k": 2},
    {"num_tokens": 9, "num_experts": 8, "k": 2},
    {"num_tokens": 5, "num_experts": 4, "k": 4},
    {"num_tokens": 150, "num_experts": 3, "k": 2, "hidden": 9},
    {"num_tokens": 40, "num_experts": 70, "k": 6, "hidden": 11},
)
def several_experts(answer: Any, draw: Draw, num_tokens: int, num_experts: int, k: int, hidden: int = HIDDEN) -> None:
    """The weights of a token's k experts sum to 1, and are proportional to exp of their logits. And does an
    expert's output replace what a token has from the others, or add to it?"""
    what = f"the output of {num_tokens} tokens with {k} of {num_experts} experts"
    for _ in range(2):  # sizes are the same, the numbers are not
        x, router, experts = inputs(draw, num_tokens, num_experts, hidden)
        got = mixed(answer, x, router, experts, k)
        compare(got, oracle(x, router, experts, k), what=what, axes=("token", "dimension"))


@MIXTURE.check("calls an expert once, with all of its rows", num_tokens=(12, 30), num_experts=(3, 8), k=(2, 2))
def reads_each_once(answer: Any, draw: Draw, num_tokens: int, num_experts: int, k: int) -> None:
    """A call reads the expert's weights. One call for all tokens that chose it reads them once."""
    x, router, experts = inputs(draw, num_tokens, num_experts)
    mixed(answer, x, router, experts, k)
    chosen = (x @ router.T).topk(k, dim=-1).indices.flatten().tolist()
    for number, expert in enumerate(experts):
        if len(expert.num_rows) > 1:
            reject(f"expert {number} was called {len(expert.num_rows)} times, for {expert.num_rows} rows; call it once")
        if chosen.count(number) != sum(expert.num_rows):
            reject(f"expert {number} computed {sum(expert.num_rows)} rows; {chosen.count(number)} tokens chose it")


@MIXTURE.check("calls no expert that no token chose", num_experts=(4, 16))
def leaves_others_alone(answer: Any, draw: Draw, num_experts: int) -> None:
    """An expert that no token chose is not called: its weights need not be read. No tokens: no calls."""
    # One token, or none: experts without rows are not called.
    for num_tokens in (1, 0):
        x, router, experts = inputs(draw, num_tokens, num_experts)
        mixed(answer, x, router, experts, 2)
        called = [number for number, expert in enumerate(experts) if expert.num_rows]
        if len(called) != 2 * num_tokens:
            reject(f"{num_tokens} tokens with k=2: experts {called} were called, expected {2 * num_tokens} of them")


SHAPES = cases(
    num_tokens=(1, 3, 7, 90, 4, 0), num_experts=(2, 4, 6, 64, 132, 4), k=(1, 2, 2, 8, 66, 2), n=(2, 2, 3, 4, 2, 2)
)

EXCHANGE = exercise(
    "7.8", "Rows that travel", "dispatch combine", points=3, minutes=20, lines=6, difficulty=3, is_extra=True
)
EXCHANGE.time_limit_s = 10
EXCHANGE.objective = "send each row to the rank of its expert, and bring it back to its token"
EXCHANGE.hints = (
    "Flatten the [T, K] choices: entry i is choice i % K of token i // K. Sorting the entries by expert also sorts "
    "them by rank, because a rank has consecutive experts.",
    "`order` says which entry each sorted row was. `bincount(..., minlength=num_experts)` counts experts that "
    "nobody chose, too.",
    "The way back is the sorting undone: sorted row j belongs at entry order[j].",
)


def routing(draw: Draw, num_tokens: int, num_experts: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, N], experts [T, K] without repetition in a row, weights [T, K]. N is K plus a few: wide where K is."""
    x = draw.normal(num_tokens, k + draw.integer(2, 7), dtype=torch.float64)
    chosen = [draw.permutation(num_experts)[:k] for _ in range(num_tokens)]
    experts = torch.stack(chosen) if chosen else torch.zeros(0, k, dtype=torch.int64)
    weights = draw.uniform(num_tokens, k, low=0.1).double()
    return x, experts, weights


def sent(answer: Any, x: Tensor, experts: Tensor, num_experts: int, n: int) -> tuple[list[Tensor], Tensor, Any]:
    with unchanged(x=x, experts=experts):
        result = answer.dispatch(x, experts, num_experts, n)
    if not isinstance(result, tuple | list) or len(result) != 3:
        reject("dispatch must return three things: the rows for each rank, the counts, the order")
    rows, counts, order = result
    if not isinstance(rows, tuple | list) or len(rows) != n:
        got = f"{len(rows)} of them" if isinstance(rows, tuple | list) else type(rows).__name__
        what = f"{len(x)} tokens with {experts.shape[1]} of {num_experts} experts each"
        reject(f"{what}: dispatch for {n} ranks must return {n} tensors of rows, one for each rank; it returned {got}")
    return list(rows), counts, order


@EXCHANGE.check("has a part for each rank", *SHAPES)
def has_a_part_for_each_rank(answer: Any, draw: Draw, num_tokens: int, num_experts: int, k: int, n: int) -> None:
    """A rank that gets no rows has a part of zero rows: `split` with a list of sizes makes one for each size,
    `chunk` makes fewer parts where there are few rows."""
    # Also for ranks that get no rows.
    x, experts, _ = routing(draw, num_tokens, num_experts, k)
    sent(answer, x, experts, num_experts, n)


@EXCHANGE.check("counts the rows of each expert", *SHAPES)
def counts_rows(answer: Any, draw: Draw, num_tokens: int, num_experts: int, k: int, n: int) -> None:
    """[n, experts of a rank], all experts included: the receiver needs zeros as well."""
    x, experts, _ = routing(draw, num_tokens, num_experts, k)
    _, counts, _ = sent(answer, x, experts, num_experts, n)
    per_rank = num_experts // n
    flat = experts.flatten().tolist()
    expected = [[flat.count(rank * per_rank + e) for e in range(per_rank)] for rank in range(n)]
    compare(listed(counts), expected, what="the counts", axes=("rank", "expert of the rank"))


@EXCHANGE.check("sends rows to the rank of their expert", *SHAPES)
def sends_rows_to_their_rank(answer: Any, draw: Draw, num_tokens: int, num_experts: int, k: int, n: int) -> None:
    """Rank r has the experts from r * num_experts / n on. Its rows are sorted by expert; rows of one expert may
    come in any order."""
    per_rank = num_experts // n
    x, first, _ = routing(draw, num_tokens, num_experts, k)
    for experts in (first, (first + 1) % num_experts):  # the same rows, and other choices
        rows, _, _ = sent(answer, x, experts, num_experts, n)
        tokens_of: list[list[int]] = [[] for _ in range(num_experts)]
        for t, row in enumerate(experts.tolist()):
            for e in row:
                tokens_of[e].append(t)
        for rank in range(n):
            its_experts = range(rank * per_rank, (rank + 1) * per_rank)
            where = f"rank {rank} of {n} (experts {its_experts[0]} to {its_experts[-1]})"
            shape = [sum(len(tokens_of[e]) for e in its_experts), x.shape[1]]
            if not isinstance(rows[rank], torch.Tensor) or list(rows[rank].shape) != shape:
                got = list(rows[rank].shape) if isinstance(rows[rank], torch.Tensor) else type(rows[rank]).__name__
                reject(f"the rows for {where} are {got}, expected {shape}")
            start = 0
            for e in its_experts:
                part = rows[rank][start : start + len(tokens_of[e])]
                what = f"the rows of expert {e}, for {where}, sorted by their first number,"
                compare(by_first(part), by_first(x[tokens_of[e]]), what=what, axes=("row", "dimension"))
                start += len(part)


def by_first(rows: Tensor) -> Tensor:
    """Rows in an order of their own: those of one expert may come in any."""
    return rows[rows[:, 0].argsort()]


def exchange(answer: Any, x: Tensor, experts: Tensor, weights: Tensor, compute: Callable[[int, Tensor], Tensor],
             num_experts: int, n: int) -> Tensor:  # fmt: skip
    """There and back: each rank's experts compute the rows that came, sorted by expert."""
    rows, counts, order = sent(answer, x, experts, num_experts, n)
    per_rank, returned = num_experts // n, []
    for rank, part in enumerate(rows):
        pieces = part.split([int(count) for count in counts[rank]])
        returned.append(torch.cat([compute(rank * per_rank + e, piece) for e, piece in enumerate(pieces)]))
    with unchanged(weights=weights, **{f"rows of rank {rank}": part for rank, part in enumerate(returned)}):
        got: Tensor = answer.combine(returned, order, weights)
    return got


@EXCHANGE.check("brings every row back to its token", *SHAPES)
def brings_rows_home(answer: Any, draw: Draw, num_tokens: int, num_experts: int, k: int, n: int) -> None:
    """`rows[order] = ...` puts sorted rows where they were before sorting."""
    # Experts that do nothing: each token comes back, times the sum of its weights. Twice, with other choices.
    for _ in range(2):
        x, experts, weights = routing(draw, num_tokens, num_experts, k)
        got = exchange(answer, x, experts, weights, lambda _, rows: rows.clone(), num_experts, n)
        what = "what comes back from experts that change nothing"
        compare(got, x * weights.sum(1, keepdim=True), what=what, axes=("token", "dimension"))


@EXCHANGE.check("adds up a token's experts, each with its weight", *SHAPES)
def weighs_each_choice(answer: Any, draw: Draw, num_tokens: int, num_experts: int, k: int, n: int) -> None:
    """After `order` is undone, entry (t, c) is choice c of token t, and weights[t, c] is its weight."""
    x, experts, weights = routing(draw, num_tokens, num_experts, k)
    got = exchange(answer, x, experts, weights, lambda e, rows: (e + 1) * rows, num_experts, n)
    factors = ((experts + 1) * weights).sum(1, keepdim=True)
    compare(got, x * factors, what="the sum over a token's experts, each with its weight,", axes=("token", "dimension"))


def experts_touched() -> float:
    from twophase_labs.many_machines.small_moe import touched

    return touched(8)


GUESS_7_7 = exercise("7.7", "How many experts wake up?", kind="prediction", points=1, minutes=4, time_limit_s=60)
GUESS_7_7.objective = "expect how many experts' weights a decode step reads"
GUESS_7_7.question = Number(
    experts_touched,
    factor=1.25,
    unit="experts",
    hint="One token leaves a given expert alone with probability 1 - 2/16. And eight tokens?",
)
