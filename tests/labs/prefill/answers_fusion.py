"""Answers that prove the checks of exercises 2.13 and 2.14."""

from twophase_labs.machine.bank import right, wrong

COUNTS_STEPS, EXAMPLE_A = "counts steps that run apart", "gives the first number of the example"
READS_AN, COUNTS_ANY = "reads an input of a step once", "counts any chain that runs apart"
EXAMPLE_B, MOVES_NOTHING = "gives the second number of the example", "moves nothing that is made and dropped"
READS_AN_INPUT, WRITES_WHAT = "reads an input of the chain once", "writes what is kept"
WRITES_NO, COUNTS_ANY_CHAIN, ADDS = "writes no input back", "counts any chain as one", "adds the residual"
NORMALISES, MULTIPLIES_BY, ADDS_EPS = "normalises each row", "multiplies by the weights", "adds eps under the root"

WRITES_WHAT_NO_LATER = """
def chain_traffic(steps, sizes, kept):
    from collections import Counter
    apart = sum(sum(sizes[n] for n in set(i)) + sizes[o] for i, o in steps)
    uses = Counter(n for i, _ in steps for n in i)
    made = {o for _, o in steps}
    return apart, sum(sizes[n] for n in uses if n not in made) + sum(sizes[o] for o in made if o in kept or o not in uses)
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

# fmt: off
BANKS = {
    "2.13": (
        wrong("no inputs", "sum(sizes[name] for name in set(inputs)) + sizes[output]", "sizes[output]",
              by=COUNTS_STEPS),
        wrong("the other way round", "return apart, fused", "return (fused, apart)", by=EXAMPLE_A),
        wrong("reads x twice in x * x", "(sizes[name] for name in set(inputs))", "(sizes[name] for name in inputs)",
              by=READS_AN),
        wrong("at most 16 steps", "steps:", "steps[:16]:", by=COUNTS_ANY),
        wrong("forgets what it made", "*inputs, output", "*inputs", by=EXAMPLE_B),
        wrong("writes everything", "[output] if output in kept else 0", "[output]", by=MOVES_NOTHING),
        wrong("forgets what it read", "{*inputs, output}", "{output}", by=READS_AN_INPUT),
        wrong("writes what no later step reads", WRITES_WHAT_NO_LATER, by=WRITES_WHAT),
        wrong("adds up what is kept", "sizes[output] if output in kept else 0", "0", "return apart, fused",
              "return apart, fused + sum((sizes[n] for n in kept))", by=WRITES_NO),
        wrong("the first two inputs only", "set(inputs) - at_hand", "set(inputs[:2]) - at_hand", by=COUNTS_ANY_CHAIN),
        right("from outside", FROM_OUTSIDE),
        right("loops, lists, numpy", IN_NUMPY),
    ),
    "2.14": (
        wrong("always the first row", "row * N + columns", "columns", by=ADDS),
        wrong("no mask for h", ".store(h_ptr + offs, h, mask=mask", ".store(h_ptr + offs, h", by=ADDS),
        wrong("no residual", ".load(x_ptr + offs, mask=mask, other=0.0) + tl.load(residual_ptr", ".load(x_ptr",
              by=ADDS),
        wrong("the mean, not of squares", "tl.sum(h * h, axis=0)", "tl.sum(h, axis=0)", by=NORMALISES),
        wrong("a sum, not a mean", ".sum(h * h, axis=0) / N", ".sum(h * h, axis=0)", by=NORMALISES),
        wrong("no weights", "h * tl.rsqrt(mean_square + eps) * weight", "h * tl.rsqrt(mean_square + eps)",
              by=MULTIPLIES_BY),
        wrong("no eps", "mean_square + eps", "mean_square", by=ADDS_EPS),
        wrong("eps after the root", "tl.rsqrt(mean_square + eps", "(1.0 / (tl.sqrt(mean_square) + eps)", by=ADDS_EPS),
        right("masked again", "tl.sum(h * h, axis=0)", "tl.sum(tl.where(mask, h * h, 0.0), axis=0)"),
        right("a root and a division", "* tl.rsqrt", "/ tl.sqrt"),
    ),
}
