"""Answers that prove the checks of exercises 6.5 and 6.6."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

WHOLE, TOKEN, ZEROS, ALONE = (
    "multiplies whole numbers exactly",
    "rounds each token with a scale of its own",
    "gives zeros for a token of zeros",
    "computes a token alike whatever is beside it",
)
PRODUCTS, FACTORS, EQUAL, UNUSED = (
    "leaves every product as it was",
    "has the factors of the formula",
    "makes inputs and weights equally large at 0.5",
    "leaves unused inputs alone",
)
RIGHT = """
def smooth(norm_weight, weights, x_max, alpha):
    w_max = torch.stack([w.abs().amax(0) for w in weights]).amax(0)
    factors = x_max**alpha / w_max ** (1 - alpha)
    factors = torch.where((x_max > 0) & (w_max > 0), factors, 1)
    return norm_weight / factors, [w * factors for w in weights]
"""


def edited(old: str, new: str) -> str:
    assert old in RIGHT, old
    return RIGHT.replace(old, new)


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
IN_LOGARITHMS = """
def smooth(norm_weight, weights, x_max, alpha):
    together = torch.cat(list(weights)).abs().max(dim=0).values
    log_factors = alpha * x_max.log() - (1 - alpha) * together.log()
    unused = (x_max == 0) | (together == 0)
    factors = log_factors.masked_fill(unused, 0).exp()
    return norm_weight / factors, tuple(torch.einsum("oi,i->oi", w, factors) for w in weights)
"""

BANKS = {
    "6.5": Bank(
        wrong=(
            Wrong("one scale for all tokens", {1: "x.abs().max().clamp(min=1e-30) / 127"}, TOKEN),
            Wrong("a scale per input", {1: "x.abs().amax(dim=0, keepdim=True).clamp(min=1e-30) / 127"}, WHOLE),
            Wrong("the largest, not its magnitude", {1: "x.amax(dim=1, keepdim=True).clamp(min=1e-30) / 127"}, TOKEN),
            Wrong("128 steps", {1: "x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 128"}, WHOLE),
            Wrong("255 steps", {1: "2 * x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 255"}, WHOLE),
            Wrong("0 / 0 as a code", {1: "x.abs().amax(dim=1, keepdim=True) / 127"}, ZEROS),
            Wrong("rounded in place", {2: "x.div_(x_scales).round_().to(torch.int8)"}, TOKEN),
            Wrong(
                "scales no smaller than 0.01",
                {1: "x.abs().amax(dim=1, keepdim=True).clamp(min=1e-2) / 127"},
                TOKEN,
            ),
            Wrong("cut off, not rounded", {2: "(x / x_scales).to(torch.int8)"}, TOKEN),
            Wrong("rounded down", {2: "(x / x_scales).floor().to(torch.int8)"}, TOKEN),
            Wrong("not rounded at all", {2: "x / x_scales", 3: "x_codes @ codes.float().t()"}, TOKEN),
            Wrong("codes from 0", {2: "(x / x_scales).round().clamp(0, 127).to(torch.int8)"}, WHOLE),
            Wrong("sums in int8", {3: "x_codes @ codes.t()"}, WHOLE),
            Wrong("sums in half precision", {3: "(x_codes.bfloat16() @ codes.t().bfloat16())"}, WHOLE),
            Wrong("the weights' scales alone", {4: "sums * scales"}, TOKEN),
            Wrong("the tokens' scales alone", {4: "sums * x_scales"}, WHOLE),
            Wrong("divided by the scale", {4: "sums / x_scales * scales"}, TOKEN),
            Wrong("nothing for a 0 token", {1: "x.abs().amax(dim=1, keepdim=True) / 127", 3: "(x / x_scales).round() @ codes.t().float()"}, ZEROS),
        ),
        right=(
            Right("whole numbers in int32", {3: "x_codes.int() @ codes.t().int()"}),
            Right("whole numbers in float32, which holds these sums", {3: "x_codes.float() @ codes.float().t()"}),
            Right("whole numbers in float64", {3: "x_codes.double() @ codes.t().double()"}),
            Right("the maximum of the row and of its negative", {1: "torch.maximum(x, -x).max(1).values.clamp(min=1e-20)[:, None] / 127"}),
            Right("clamped codes", {2: "torch.round(x / x_scales).clamp(-127, 127).to(torch.int8)"}),
            Right("scales first", {4: "(x_scales * scales[None, :]) * sums.float()"}),
        ),
    ),
    "6.6": Bank(
        wrong=(
            Wrong("multiplied twice", edited("norm_weight / factors", "norm_weight * factors"), PRODUCTS),
            Wrong("divided twice", edited("w * factors", "w / factors"), PRODUCTS),
            Wrong(
                "the other way round",
                edited("norm_weight / factors, [w * factors", "norm_weight * factors, [w / factors"),
                FACTORS,
            ),
            Wrong(
                "other tensors in the list that was given",
                edited("[w * factors for w in weights]", "weights").replace(
                    "    return", "    for i in range(len(weights)):\n        weights[i] = weights[i] * factors\n    return"
                ),
                PRODUCTS,
            ),
            Wrong("alpha on the weights", edited("x_max**alpha / w_max ** (1 - alpha)", "x_max ** (1 - alpha) / w_max**alpha"), FACTORS),
            Wrong("always 0.5", edited("x_max**alpha / w_max ** (1 - alpha)", "(x_max / w_max).sqrt()"), FACTORS),
            Wrong("both powers alpha", edited("w_max ** (1 - alpha)", "w_max**alpha"), FACTORS),
            Wrong("the inputs alone", edited(" / w_max ** (1 - alpha)", ""), FACTORS),
            Wrong("a product", edited("x_max**alpha / w_max", "x_max**alpha * w_max"), FACTORS),
            Wrong("the first weight's maxima", edited("for w in weights]).amax(0)\n", "for w in weights[:1]]).amax(0)\n"), FACTORS),
            Wrong("the last of the maxima", edited("for w in weights]).amax(0)\n", "for w in weights])[-1]\n"), FACTORS),
            Wrong("signed maxima", edited("w.abs().amax(0)", "w.amax(0)"), FACTORS),
            Wrong("mean magnitudes", edited("w.abs().amax(0)", "w.abs().mean(0)"), FACTORS),
            Wrong(
                "factors for each weight",
                edited("[w * factors for w in weights]", "[w * x_max**alpha / w.abs().amax(0) ** (1 - alpha) for w in weights]"),
                PRODUCTS,
            ),
            Wrong("one factor for all", edited("x_max**alpha / w_max ** (1 - alpha)", "(x_max.max() ** alpha / w_max.max() ** (1 - alpha)).expand_as(x_max)"), FACTORS),
            Wrong("never below 1", edited("& (w_max > 0), factors, 1)", "& (w_max > 0), factors.clamp(min=1), 1)"), FACTORS),
            Wrong("divided by 0", edited("    factors = torch.where((x_max > 0) & (w_max > 0), factors, 1)\n", ""), UNUSED),
            Wrong("a tiny floor", edited("torch.where((x_max > 0) & (w_max > 0), factors, 1)", "factors.clamp(1e-5, 1e5)"), UNUSED),
            Wrong("inputs that are 0 only", edited("(x_max > 0) & (w_max > 0)", "x_max > 0"), UNUSED),
            Wrong("weights that are 0 only", edited("(x_max > 0) & (w_max > 0)", "w_max > 0"), UNUSED),
            Wrong("in place", edited("[w * factors for", "[w.mul_(factors) for"), PRODUCTS),
            Wrong("the weight only", edited("norm_weight / factors, ", "norm_weight, "), PRODUCTS),
        ),
        right=(
            Right("input by input", INPUT_BY_INPUT),
            Right("in logarithms", IN_LOGARITHMS),
            Right("maxima of one tall matrix", edited("torch.stack([w.abs().amax(0) for w in weights]).amax(0)", "torch.cat(weights).abs().amax(0)")),
        ),
    ),
}  # fmt: skip
