"""Answers that prove the checks of exercises 6.5 and 6.6."""

from twophase_labs.machine.bank import right, wrong

WHOLE, TOKEN = "multiplies whole numbers exactly", "rounds each token with a scale of its own"
ZEROS, PRODUCTS = "gives zeros for a token of zeros", "leaves every product as it was"
FACTORS, UNUSED = "has the factors of the formula", "leaves unused inputs alone"

IN_LOGARITHMS = """
def smooth(norm_weight, weights, x_max, alpha):
    together = torch.cat(list(weights)).abs().max(dim=0).values
    log_factors = alpha * x_max.log() - (1 - alpha) * together.log()
    unused = (x_max == 0) | (together == 0)
    factors = log_factors.masked_fill(unused, 0).exp()
    return norm_weight / factors, tuple(torch.einsum("oi,i->oi", w, factors) for w in weights)
"""
INPUT_BY_INPUT = """
def smooth(norm_weight, weights, x_max, alpha):
    norm, new = norm_weight.clone(), [w.clone() for w in weights]
    for i in range(len(norm)):
        largest = max(float(w[:, i].abs().max()) for w in weights)
        if largest == 0 or x_max[i] == 0:
            continue
        factor = float(x_max[i]) ** alpha * largest ** (alpha - 1)
        norm[i] /= factor
        for w in new:
            w[:, i] *= factor
    return norm, new
"""

# fmt: off
BANKS = {
    "6.5": (
        wrong("the tokens' scales alone", {4: "sums * x_scales"}, by=WHOLE),
        wrong("sums in int8", {3: "x_codes @ codes.t()"}, by=WHOLE),
        wrong("sums in half precision", {3: "(x_codes.bfloat16() @ codes.t().bfloat16())"}, by=WHOLE),
        wrong("the largest, not its magnitude", ".abs()", "", by=TOKEN),
        wrong("the weights' scales alone", {4: "sums * scales"}, by=TOKEN),
        wrong("cut off, not rounded", {2: "(x / x_scales).to(torch.int8)"}, by=TOKEN),
        wrong("0 / 0 as a code", {1: "x.abs().amax(dim=1, keepdim=True) / 127"}, by=ZEROS),
        wrong("nothing for a 0 token",
              {1: "x.abs().amax(dim=1, keepdim=True) / 127", 3: "(x / x_scales).round() @ codes.t().float()"},
              by=ZEROS),
        right("the maximum of the row and of its negative",
              {1: "torch.maximum(x, -x).max(1).values.clamp(min=1e-20)[:, None] / 127"}),
        right("whole numbers in int32", {3: "x_codes.int() @ codes.t().int()"}),
    ),
    "6.6": (
        wrong("in place", "w * factors", "w.mul_(factors)", by=PRODUCTS),
        wrong("the weight only", "norm_weight / factors", "norm_weight", by=PRODUCTS),
        wrong("other tensors in the list that was given",
              "return norm_weight / factors, [w * factors for w in weights]",
              "for i in range(len(weights)):\n        weights[i] = weights[i] * factors\n    return norm_weight / factors, weights",
              by=PRODUCTS),
        wrong("signed maxima", ".abs()", "", by=FACTORS),
        wrong("both powers alpha", "1 - alpha", "alpha", by=FACTORS),
        wrong("mean magnitudes", ".abs().amax", ".abs().mean", by=FACTORS),
        wrong("inputs that are 0 only", "(x_max > 0) & (w_max > 0)", "x_max > 0", by=UNUSED),
        wrong("a tiny floor", "torch.where((x_max > 0) & (w_max > 0), factors, 1", "factors.clamp(1e-05, 100000.0",
              by=UNUSED),
        right("in logarithms", IN_LOGARITHMS),
        right("input by input", INPUT_BY_INPUT),
    ),
}
