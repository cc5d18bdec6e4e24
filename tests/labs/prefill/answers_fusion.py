"""Answers that prove the checks of exercises 2.13 and 2.14."""

from tests.labs.prefill.variants import edited
from twophase_labs.machine.exercise import Bank, Right, Wrong

CHAIN = """
def chain_traffic(steps, sizes, kept):
    apart, fused, at_hand = 0, 0, set()
    for inputs, output in steps:
        apart += sum(sizes[name] for name in set(inputs)) + sizes[output]
        fused += sum(sizes[name] for name in set(inputs) - at_hand)
        fused += sizes[output] if output in kept else 0
        at_hand |= {*inputs, output}
    return apart, fused
"""
FROM_OUTSIDE = """
def chain_traffic(steps, sizes, kept):
    made = {output for _, output in steps}
    read = {name for inputs, _ in steps for name in inputs}
    apart = sum(sizes[n] for inputs, output in steps for n in {*inputs, output})
    return apart, sum(sizes[n] for n in read - made) + sum(sizes[n] for n in made & set(kept))
"""
IN_NUMPY = """
import numpy as np
def chain_traffic(steps, sizes, kept):
    apart, fused, at_hand = np.int64(0), np.int64(0), []
    for inputs, output in steps:
        for name in dict.fromkeys(inputs):
            apart += sizes[name]
            if name not in at_hand:
                fused += sizes[name]
                at_hand.append(name)
        apart += sizes[output]
        at_hand.append(output)
        if output in kept:
            fused += sizes[output]
    return [apart, fused]
"""
CHANGES_KEPT = """
def chain_traffic(steps, sizes, kept):
    apart = fused = 0
    at_hand = set()
    for inputs, output in steps:
        apart += sum(sizes[name] for name in set(inputs)) + sizes[output]
        fused += sum(sizes[name] for name in set(inputs) - at_hand)
        if output in kept:
            kept.remove(output)
            fused += sizes[output]
        at_hand |= {*inputs, output}
    return apart, fused
"""
REMEMBERS = """
_at_hand = set()
def chain_traffic(steps, sizes, kept):
    apart = fused = 0
    for inputs, output in steps:
        apart += sum(sizes[name] for name in set(inputs)) + sizes[output]
        fused += sum(sizes[name] for name in set(inputs) - _at_hand)
        fused += sizes[output] if output in kept else 0
        _at_hand.update({*inputs, output})
    return apart, fused
"""
FIRST_AND_LAST = """
def chain_traffic(steps, sizes, kept):
    apart = sum(sizes[n] for inputs, output in steps for n in {*inputs, output})
    fused = sum(sizes[n] for n in set(steps[0][0])) + sum(sizes[n] for n in kept)
    return apart, fused
"""
EXAMPLE_A, EXAMPLE_B = "gives the first number of the example", "gives the second number of the example"

KERNEL = """
@triton.jit
def add_rmsnorm_kernel(x_ptr, residual_ptr, weight_ptr, y_ptr, h_ptr, eps, N: tl.constexpr, BLOCK_N: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK_N)
    mask = columns < N
    offs = row * N + columns
    h = tl.load(x_ptr + offs, mask=mask, other=0.0) + tl.load(residual_ptr + offs, mask=mask, other=0.0)
    tl.store(h_ptr + offs, h, mask=mask)
    mean_square = tl.sum(h * h, axis=0) / N
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    tl.store(y_ptr + offs, h * tl.rsqrt(mean_square + eps) * weight, mask=mask)
"""
ADDS, NORMALISES = "adds the residual", "normalises each row"

BANKS = {
    "2.13": Bank(
        wrong=(
            Wrong("no outputs", edited(CHAIN, (" + sizes[output]\n", "\n")), "counts steps that run apart"),
            Wrong(
                "no inputs",
                edited(CHAIN, ("sum(sizes[name] for name in set(inputs)) + ", "")),
                "counts steps that run apart",
            ),
            Wrong(
                "reads x twice in x * x",
                edited(CHAIN, ("in set(inputs))", "in inputs)")),
                "reads an input of a step once",
            ),
            Wrong(
                "apart, but each input only once",
                edited(
                    CHAIN,
                    (
                        "sum(sizes[name] for name in set(inputs)) +",
                        "sum(sizes[name] for name in set(inputs) - at_hand) +",
                    ),
                ),
                EXAMPLE_A,
            ),
            Wrong("reads what it has", edited(CHAIN, (" - at_hand)", ")")), EXAMPLE_B),
            Wrong("forgets what it made", edited(CHAIN, ("{*inputs, output}", "{*inputs}")), EXAMPLE_B),
            Wrong(
                "forgets what it read",
                edited(CHAIN, ("{*inputs, output}", "{output}")),
                "reads an input of the chain once",
            ),
            Wrong(
                "writes everything",
                edited(CHAIN, ("sizes[output] if output in kept else 0", "sizes[output]")),
                "moves nothing that is made and dropped",
            ),
            Wrong(
                "writes the last output only",
                edited(CHAIN, ("if output in kept else", "if output == steps[-1][1] else")),
                EXAMPLE_B,
            ),
            Wrong("writes nothing", edited(CHAIN, ("sizes[output] if output in kept else 0", "0")), EXAMPLE_B),
            Wrong(
                "adds up what is kept",
                edited(
                    CHAIN,
                    ("sizes[output] if output in kept else 0", "0"),
                    ("return apart, fused", "return apart, fused + sum(sizes[n] for n in kept)"),
                ),
                "writes no input back",
            ),
            Wrong("the first step's inputs", FIRST_AND_LAST, "writes no input back"),
            Wrong("changes the caller's set", CHANGES_KEPT, "counts steps that run apart"),
            Wrong("remembers from chain to chain", REMEMBERS, EXAMPLE_B),
            Wrong(
                "at most 16 steps", edited(CHAIN, ("in steps:", "in steps[:16]:")), "counts any chain that runs apart"
            ),
            Wrong("the other way round", edited(CHAIN, ("return apart, fused", "return fused, apart")), EXAMPLE_A),
            Wrong(
                "writes what no later step reads",
                """
def chain_traffic(steps, sizes, kept):
    from collections import Counter
    apart = sum(sum(sizes[n] for n in set(i)) + sizes[o] for i, o in steps)
    uses = Counter(n for i, _ in steps for n in i)
    made = {o for _, o in steps}
    return apart, sum(sizes[n] for n in uses if n not in made) + sum(sizes[o] for o in made if o in kept or o not in uses)
""",
                "writes what is kept",
            ),
            Wrong(
                "names at hand from an earlier call",
                """
def chain_traffic(steps, sizes, kept, at_hand=set()):
    apart, fused = 0, 0
    for inputs, output in steps:
        apart += sum(sizes[name] for name in set(inputs)) + sizes[output]
        fused += sum(sizes[name] for name in set(inputs) - at_hand)
        fused += sizes[output] if output in kept else 0
        at_hand |= {*inputs, output}
    return apart, fused
""",
                "gives the second number of the example",
            ),
            Wrong(
                "the first two inputs only",
                """
def chain_traffic(steps, sizes, kept):
    apart, fused, at_hand = 0, 0, set()
    for inputs, output in steps:
        apart += sum(sizes[name] for name in set(inputs)) + sizes[output]
        fused += sum(sizes[name] for name in set(inputs[:2]) - at_hand)
        fused += sizes[output] if output in kept else 0
        at_hand |= {*inputs, output}
    return apart, fused
""",
                "counts any chain as one",
            ),
        ),
        right=(
            Right("from outside", FROM_OUTSIDE),
            Right("loops, lists, numpy", IN_NUMPY),
            Right("two sums", edited(CHAIN, ("return apart, fused", "return int(apart), int(fused)"))),
            Right(
                "matrices of steps and names",
                """
def chain_traffic(steps, sizes, kept):
    import numpy as np
    names = list(sizes)
    size = np.array([sizes[n] for n in names])
    reads = np.zeros((len(steps), len(names)), dtype=bool)
    makes = np.zeros_like(reads)
    for row, (inputs, output) in enumerate(steps):
        for n in inputs:
            reads[row, names.index(n)] = True
        makes[row, names.index(output)] = True
    keep = np.array([n in kept for n in names], dtype=bool)
    made = makes.any(0)
    apart = (reads * size).sum() + (makes * size).sum()
    fused = (size * (reads.any(0) & ~made)).sum() + (size * (made & keep)).sum()
    return int(apart), int(fused)
""",
            ),
        ),
    ),
    "2.14": Bank(
        wrong=(
            Wrong("no residual", edited(KERNEL, (" + tl.load(residual_ptr + offs, mask=mask, other=0.0)", "")), ADDS),
            Wrong("always the first row", edited(KERNEL, ("offs = row * N + columns", "offs = columns")), ADDS),
            Wrong("rows of BLOCK_N", edited(KERNEL, ("row * N + columns", "row * BLOCK_N + columns")), ADDS),
            Wrong(
                "no mask for h",
                edited(KERNEL, ("tl.store(h_ptr + offs, h, mask=mask)", "tl.store(h_ptr + offs, h)")),
                ADDS,
            ),
            Wrong(
                "x in place of h",
                edited(
                    KERNEL,
                    (
                        "tl.store(h_ptr + offs, h, mask=mask)",
                        "tl.store(h_ptr + offs, tl.load(x_ptr + offs, mask=mask, other=0.0), mask=mask)",
                    ),
                ),
                ADDS,
            ),
            Wrong("the mean over the tile", edited(KERNEL, ("/ N\n", "/ BLOCK_N\n")), NORMALISES),
            Wrong("a sum, not a mean", edited(KERNEL, (" / N\n", "\n")), NORMALISES),
            Wrong(
                "the mean, not of squares", edited(KERNEL, ("tl.sum(h * h, axis=0)", "tl.sum(h, axis=0)")), NORMALISES
            ),
            Wrong(
                "the variance",
                edited(
                    KERNEL,
                    (
                        "tl.sum(h * h, axis=0) / N",
                        "tl.sum(h * h, axis=0) / N - (tl.sum(h, axis=0) / N) * (tl.sum(h, axis=0) / N)",
                    ),
                ),
                NORMALISES,
            ),
            Wrong("no weights", edited(KERNEL, (" * weight, mask", ", mask")), "multiplies by the weights"),
            Wrong("one plus the weights", edited(KERNEL, (" * weight, mask", " * (1.0 + weight), mask")), NORMALISES),
            Wrong("no eps", edited(KERNEL, ("mean_square + eps", "mean_square")), "adds eps under the root"),
            Wrong(
                "eps after the root",
                edited(KERNEL, ("tl.rsqrt(mean_square + eps)", "(1.0 / (tl.sqrt(mean_square) + eps))")),
                "adds eps under the root",
            ),
            Wrong(
                "an eps of its own",
                edited(KERNEL, ("mean_square + eps", "mean_square + 1e-5")),
                "adds eps under the root",
            ),
            Wrong(
                "overwrites the residual too",
                """
@triton.jit
def add_rmsnorm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    h_ptr,
    eps,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK_N)
    mask = columns < N
    offs = row * N + columns
    h = tl.load(x_ptr + offs, mask=mask, other=0.0) + tl.load(residual_ptr + offs, mask=mask, other=0.0)
    tl.store(h_ptr + offs, h, mask=mask)
    tl.store(residual_ptr + offs, h, mask=mask)
    mean_square = tl.sum(h * h, axis=0) / N
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    tl.store(y_ptr + offs, h * tl.rsqrt(mean_square + eps) * weight, mask=mask)
""",
                "adds the residual",
            ),
        ),
        right=(
            Right(
                "a root and a division",
                edited(KERNEL, ("h * tl.rsqrt(mean_square + eps)", "h / tl.sqrt(mean_square + eps)")),
            ),
            Right(
                "masked again", edited(KERNEL, ("tl.sum(h * h, axis=0)", "tl.sum(tl.where(mask, h * h, 0.0), axis=0)"))
            ),
            Right(
                "the last store first",
                edited(
                    KERNEL,
                    ("    tl.store(h_ptr + offs, h, mask=mask)\n", ""),
                    ("* weight, mask=mask)\n", "* weight, mask=mask)\n    tl.store(h_ptr + offs, h, mask=mask)\n"),
                ),
            ),
            Right(
                "logarithms, and no other",
                """
@triton.jit
def add_rmsnorm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    h_ptr,
    eps,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    x_ptr += tl.program_id(0) * N
    residual_ptr += tl.program_id(0) * N
    c = tl.arange(0, BLOCK_N)
    inside = c < N
    h = tl.where(inside, tl.load(x_ptr + c, mask=inside) + tl.load(residual_ptr + c, mask=inside), 0.0)
    squares = tl.sum(h * h, axis=0)
    scale = tl.exp2(-0.5 * tl.log2(squares / N + eps))
    tl.store(h_ptr + tl.program_id(0) * N + c, h, mask=inside)
    tl.store(y_ptr + tl.program_id(0) * N + c, h * scale * tl.load(weight_ptr + c, mask=inside), mask=inside)
""",
            ),
        ),
    ),
}
