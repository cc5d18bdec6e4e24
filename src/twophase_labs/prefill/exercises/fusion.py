"""2.9 Fusion: the bytes of a chain of operations, apart and as one; the residual and the norm in one kernel."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.kit.guarded import run_guarded
from twophase_labs.machine.checks import Draw, compare, finite, integer, plain, reject
from twophase_labs.machine.exercise import cases, exercise
from twophase_labs.prefill.chains import Chain

LENGTHS = (
    {"num_steps": 2, "num_given": 2},
    {"num_steps": 5, "num_given": 3},
    {"num_steps": 40, "num_given": 4},
    {"num_steps": 40, "num_given": 90},  # most inputs are used once
)

CHAIN = exercise(
    "2.13", "The traffic of a chain", "chain_traffic", points=4, minutes=8, lines=8, difficulty=2, is_extra=True
)
CHAIN.objective = "count what fusion saves"
CHAIN.hints = (
    "Do the example on paper, one column per way. Apart: x, r in, h out; h in, y out. As one: x, r in; h and y out. "
    "What happened to the second reading of h?",
    "Apart is a sum over steps: each different input once, and the output. As one needs a set of the names that the "
    "chain has at hand: a name is read only if it is not in there, and written only if it is kept.",
    "Skeleton:\n"
    "apart = fused = 0\n"
    "at_hand = set()\n"
    "for inputs, output in steps:\n"
    "    apart += ...\n"
    "    for name in set(inputs):\n"
    "        if ...:\n"
    "            fused += sizes[name]\n"
    "    at_hand |= ...\n"
    "    if ...:\n"
    "        fused += sizes[output]\n"
    "return apart, fused",
)


@CHAIN.check("counts steps that run apart", which=(0,))
def counts_one_step(answer: Any, draw: Draw, which: int) -> None:
    """A step reads each of its inputs and writes its output."""
    a, b, c = (draw.integer(2, 90) for _ in range(3))
    judge(answer, Chain(((("a", "b"), "c"),), {"a": a, "b": b, "c": c}, {"c"}), which)


def moved(chain: Chain) -> tuple[int, int]:
    """Both counts by moving the elements one after another: a set of what is in slow memory, a set of what is at "
    "hand."""
    apart = 0
    for inputs, output in chain.steps:
        for name in sorted({*inputs, output}):
            apart += chain.sizes[name]
    fused, at_hand = 0, set()
    for inputs, output in chain.steps:
        for name in inputs:
            if name not in at_hand:
                fused += chain.sizes[name]
                at_hand.add(name)
        at_hand.add(output)
        if output in list(chain.kept):
            fused += chain.sizes[output]
    return apart, fused


def counted(answer: Any, chain: Chain) -> tuple[int, int]:
    steps, sizes, kept = [(tuple(i), o) for i, o in chain.steps], dict(chain.sizes), set(chain.kept)
    before = (list(steps), dict(sizes), set(kept))
    got = plain(answer.chain_traffic(steps, sizes, kept))
    if type(got) not in (tuple, list) or len(got) != 2:
        reject(f"the result is {got!r}, expected two numbers: elements moved apart, and as one")
    if (steps, sizes, kept) != before:
        reject("`steps`, `sizes` or `kept` was changed", "They belong to the caller; make a set of your own.")
    numbers = [integer(x) for x in got]
    if None in numbers:
        reject(f"the result is {got!r}, expected two whole numbers")
    return numbers[0], numbers[1]  # type: ignore[return-value]


def told(chain: Chain) -> list[str]:
    lines = [f"{', '.join(inputs) or 'nothing'} -> {output}" for inputs, output in chain.steps]
    sizes = ", ".join(f"{name} {size}" for name, size in chain.sizes.items())
    return [f"steps: {'; '.join(lines) or 'none'}", f"sizes: {sizes}; kept: {', '.join(sorted(chain.kept)) or 'none'}"]


def judge(answer: Any, chain: Chain, which: int) -> None:
    got, expected = counted(answer, chain)[which], moved(chain)[which]
    if got != expected:
        way = ("with every step on its own", "with all steps as one")[which]
        reject(f"{way} {got} elements are moved, expected {expected}", *told(chain))


def pair_chain() -> Chain:
    return Chain(((("x", "r"), "h"), (("h",), "y")), {"x": 10, "r": 10, "h": 10, "y": 10}, {"h", "y"})


def some_chain(draw: Draw, num_steps: int, num_given: int) -> Chain:
    """Random steps over up to five random earlier names, sizes up to 1,000 (also 0 and 1), any of the outputs kept."""
    names = [f"given_{i}" for i in range(num_given)]
    steps = []
    for i in range(num_steps):
        inputs = tuple(draw.choice(names) for _ in range(draw.integer(1, 6))) if names else ()
        steps.append((inputs, f"made_{i}"))
        names.append(f"made_{i}")
    kept = {f"made_{i}" for i in range(num_steps) if draw.integer(0, 3) == 0}
    return Chain(
        tuple(steps), {name: draw.choice((0, 1, *(draw.integer(2, 1000) for _ in range(8)))) for name in names}, kept
    )


@CHAIN.check("gives the first number of the example", which=(0,))
def knows_the_example(answer: Any, draw: Draw, which: int) -> None:
    """Each step reads its inputs, also those that the step before has just written."""
    judge(answer, pair_chain(), which)


@CHAIN.check("reads an input of a step once", which=(0,))
def reads_an_input_once(answer: Any, draw: Draw, which: int) -> None:
    """`x * x` reads x once: count different names. Another step that uses x reads it again."""
    n, m = draw.integer(2, 90), draw.integer(2, 90)
    judge(answer, Chain(((("x", "x"), "square"), (("square", "x"), "y")), {"x": n, "square": m, "y": n}, {"y"}), which)


def takes_any_chain(answer: Any, draw: Draw, num_steps: int, num_given: int, which: int) -> None:
    judge(answer, some_chain(draw, num_steps, num_given), which)


CHAIN.check(
    "counts any chain that runs apart",
    *LENGTHS,
    hint="Every step counts, whatever the others did; sizes are looked up by name.",
)(lambda answer, draw, **case: takes_any_chain(answer, draw, which=0, **case))
CHAIN.check(
    "gives the second number of the example",
    which=(1,),
    hint="As one, x and r are read, h and y are written. h is at hand when y is computed.",
)(knows_the_example)


@CHAIN.check("moves nothing that is made and dropped")
def drops_what_nobody_needs(answer: Any, draw: Draw) -> None:
    """What the chain makes and nobody needs afterwards is never written and never read."""
    n = draw.integer(2, 90)
    chain = Chain(((("a",), "b"), (("b",), "c"), (("c", "b"), "d")), {"a": n, "b": 7 * n, "c": 5, "d": n}, {"d"})
    judge(answer, chain, 1)


CHAIN.check(
    "reads an input of the chain once", which=(1,), hint="As one kernel the chain has x at hand after its first use."
)(reads_an_input_once)


@CHAIN.check("writes what is kept")
def writes_what_is_kept(answer: Any, draw: Draw) -> None:
    """An output in `kept` is written once, even if later steps use it too."""
    n = draw.integer(2, 90)
    chain = Chain(((("a",), "b"), (("b",), "c"), (("a", "b"), "d")), {"a": n, "b": 3, "c": n + 1, "d": 8}, {"b", "c"})
    judge(answer, chain, 1)


@CHAIN.check("writes no input back")
def keeps_a_given_one(answer: Any, draw: Draw) -> None:
    """A kept name that the chain did not make is in slow memory already."""
    # An input that is needed afterwards is in slow memory already.
    judge(answer, Chain(((("a",), "b"),), {"a": 11, "b": 4}, {"a", "b"}), 1)


CHAIN.check(
    "counts any chain as one",
    *LENGTHS,
    {"num_steps": 0, "num_given": 2},
    hint="Walk through the steps in order with a set of the names at hand.",
)(lambda answer, draw, **case: takes_any_chain(answer, draw, which=1, **case))
ROWS = cases(num_rows=(1, 3, 5, 2), width=(16, 24, 576, 1))

NORM = exercise(
    "2.14", "Residual and norm in one kernel", "add_rmsnorm_kernel", "kernel", points=4, minutes=15, lines=8
)
NORM.is_extra, NORM.difficulty = True, 2
NORM.objective = "write a fused kernel in Triton from an empty body"
NORM.hints = (
    "It is `row_max_kernel` of section 6 with two loads instead of one, and two stores.",
    "Load a row of x and of residual with the mask and `other=0.0`; add; store h; the mean of squares is `tl.sum(h "
    "* h, axis=0) / N`, since masked elements are 0; `tl.rsqrt` is one over the square root.",
    "Skeleton:\n"
    "row, columns = tl.program_id(0), tl.arange(0, BLOCK_N)\n"
    "mask = ...\n"
    "offs = row * N + columns\n"
    "h = tl.load(x_ptr + offs, mask=mask, other=0.0) + ...\n"
    "tl.store(h_ptr + offs, ...)\n"
    "mean_square = ...\n"
    "weight = tl.load(...)\n"
    "tl.store(y_ptr + offs, ..., mask=mask)",
)


def add_norm(answer: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    def launch(x: Tensor, residual: Tensor, weight: Tensor, y: Tensor, h: Tensor) -> None:
        num_rows, width = x.shape
        block = 1 << (width - 1).bit_length()
        answer.add_rmsnorm_kernel[(num_rows,)](x, residual, weight, y, h, eps, N=width, BLOCK_N=block)

    inputs = {"x": x, "residual": residual, "weight": weight}
    outputs = {"y": torch.empty_like(x), "h": torch.empty_like(x)}
    got = run_guarded(launch, inputs, outputs)
    return got["y"], got["h"]


def expected_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """A row at a time, in float64."""
    ys, hs = [], []
    for a, b in zip(x.double(), residual.double(), strict=True):
        h = a + b
        ys.append(h / (float(h @ h) / len(h) + eps) ** 0.5 * weight.double())
        hs.append(h)
    return torch.stack(ys).float(), torch.stack(hs).float()


def rows_of(draw: Draw, num_rows: int, width: int, size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    return size * draw.normal(num_rows, width), size * draw.normal(num_rows, width), draw.normal(width)


@NORM.check("adds the residual", *ROWS)
def adds(answer: Any, draw: Draw, num_rows: int, width: int) -> None:
    """h = x + residual, one row per program, stored under a mask."""
    x, residual, weight = rows_of(draw, num_rows, width)
    _, h = add_norm(answer, x, residual, weight, 1e-5)
    compare(h, x + residual, what="h", axes=("row", "column"))


@NORM.check("normalises each row", *ROWS)
def normalises(answer: Any, draw: Draw, num_rows: int, width: int) -> None:
    """Divide by the root of the mean of squares: a sum over the row, over N and not over BLOCK_N."""
    x, residual, _ = rows_of(draw, num_rows, width)
    weight = torch.ones(width)
    y, _ = add_norm(answer, x, residual, weight, 1e-6)
    finite(y, what="y", axes=("row", "column"))
    compare(y, expected_norm(x, residual, weight, 1e-6)[0], what="y with weights of 1", axes=("row", "column"))


@NORM.check("multiplies by the weights", *ROWS)
def weighs(answer: Any, draw: Draw, num_rows: int, width: int) -> None:
    """One weight per column, the same for all rows."""
    x, residual, weight = rows_of(draw, num_rows, width)
    eps = draw.choice((1e-6, 1e-5, 0.1))
    y, _ = add_norm(answer, x, residual, weight, eps)
    compare(y, expected_norm(x, residual, weight, eps)[0], what="y", axes=("row", "column"))


@NORM.check("adds eps under the root", eps=(0.01, 1.0))
def uses_eps(answer: Any, draw: Draw, eps: float) -> None:
    """eps is added to the mean square, before the root."""
    x, residual, weight = rows_of(draw, 3, 24, size=0.05)
    y, _ = add_norm(answer, x, residual, weight, eps)
    compare(y, expected_norm(x, residual, weight, eps)[0], what=f"y with eps = {eps:g}", axes=("row", "column"))


@NORM.check("survives rows of zeros")
def survives_zeros(answer: Any, draw: Draw) -> None:
    """With eps under the root nothing is divided by 0."""
    y, h = add_norm(answer, torch.zeros(2, 12), torch.zeros(2, 12), draw.normal(12), 1e-5)
    compare(h, torch.zeros(2, 12), what="h of rows of zeros", axes=("row", "column"))
    compare(y, torch.zeros(2, 12), what="y of rows of zeros", axes=("row", "column"))
