"""Answers that prove the checks of exercises 6.7 to 6.9."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SIZE, FORMULA, SMALL = (
    "gives inputs of one size the factor 1",
    "has the factors of the formula",
    "bears inputs that are 0 or nearly 0",
)
BEST, ENDS, SQUARES = (
    "finds the factors with the smallest error of the output",
    "tries alpha 0 and alpha 1",
    "goes by the sum of the squared errors",
)
NEAREST, MAKES_UP, BEGINS, GRID, CONSTANT = (
    "rounds to nearest where inputs are independent",
    "makes up for errors in the columns to come",
    "takes a group's range when the group begins",
    "stays within the group's 2^bits values",
    "keeps groups whose weights are all the same",
)
FACTORS = """
def factors_of(x, alpha):
    powers = x.abs().mean(0).clamp(min=1e-4) ** alpha
    return powers / (powers.max() * powers.min()).sqrt()
"""
AWQ = """
def awq(weight, x, bits, group_size, num_steps=11):
    wanted, best_error, best = x @ weight.T, torch.inf, None
    for step in range(num_steps):
        factors = factors_of(x, step / (num_steps - 1))
        rounded = dequantize(*quantize(weight * factors, bits, group_size)) / factors
        error = (x @ rounded.T - wanted).square().sum()
        if error < best_error:
            best_error, best = error, factors
    return best
"""
GPTQ = """
def gptq(weight, upper, bits, group_size):
    w, rounded = weight.clone(), torch.empty_like(weight)
    for i in range(w.shape[1]):
        if i % group_size == 0:
            group = w[:, i : i + group_size]
            minima = group.amin(1)
            scales = (group.amax(1) - minima) / (2**bits - 1)
        codes = ((w[:, i] - minima) / scales.clamp(min=1e-30)).round().clamp(0, 2**bits - 1)
        rounded[:, i] = codes * scales + minima
        error = (w[:, i] - rounded[:, i]) / upper[i, i]
        w[:, i + 1 :] -= torch.outer(error, upper[i, i + 1 :])
    return rounded
"""


def factors(old: str, new: str) -> str:
    assert old in FACTORS, old
    return FACTORS.replace(old, new)


def awq(old: str, new: str) -> str:
    assert old in AWQ, old
    return AWQ.replace(old, new)


def gptq(old: str, new: str) -> str:
    assert old in GPTQ, old
    return GPTQ.replace(old, new)


BY_LOGARITHMS = """
def factors_of(x, alpha):
    logs = alpha * torch.maximum(x.abs().sum(0) / len(x), torch.tensor(1e-4)).log()
    return (logs - (logs.max() + logs.min()) / 2).exp()
"""
ONE_BY_ONE = """
def factors_of(x, alpha):
    powers = [max(float(column.abs().mean()), 1e-4) ** alpha for column in x.T]
    return torch.tensor(powers) / (max(powers) * min(powers)) ** 0.5
"""
ALL_AT_ONCE = """
def awq(weight, x, bits, group_size, num_steps=11):
    def loss(factors):
        codes, scales, minima = quantize(weight * factors[None], bits, group_size)
        off = dequantize(codes, scales, minima) / factors[None] - weight
        return float(torch.linalg.norm(off @ x.T))

    return min((factors_of(x, step / (num_steps - 1)) for step in range(num_steps)), key=loss)
"""
BY_HESSIAN = """
def awq(weight, x, bits, group_size, num_steps=11):
    gram, found = x.T @ x, []
    for alpha in torch.linspace(0, 1, num_steps):
        factors = factors_of(x, alpha)
        off = dequantize(*quantize(weight * factors, bits, group_size)) / factors - weight
        found.append((float(((off @ gram) * off).sum()), factors))
    return min(found, key=lambda one: one[0])[1]
"""
IN_FLOAT64 = """
def gptq(weight, upper, bits, group_size):
    w, u, top, out = weight.double(), upper.double(), 2**bits - 1, []
    for i in range(len(u)):
        if i % group_size == 0:
            low = w[:, i : i + group_size].min(dim=1).values
            step = (w[:, i : i + group_size].max(dim=1).values - low) / top
        code = torch.where(step > 0, ((w[:, i] - low) / step).round(), torch.zeros_like(step)).clamp(0, top)
        out.append(low + code * step)
        w = w - torch.outer((w[:, i] - out[-1]) / u[i, i], u[i])
    return torch.stack(out, dim=1).to(weight.dtype)
"""
IN_BLOCKS = """
def gptq(weight, upper, bits, group_size):
    w, rounded = weight.clone(), torch.zeros_like(weight)
    for start in range(0, w.shape[1], group_size):
        block, errors = w[:, start : start + group_size], []
        lows, highs = block.aminmax(dim=1)
        scales = (highs - lows) / (2**bits - 1)
        scales[scales == 0] = 1
        for k in range(block.shape[1]):
            i = start + k
            rounded[:, i] = ((block[:, k] - lows) / scales).round().clamp(0, 2**bits - 1) * scales + lows
            errors.append((block[:, k] - rounded[:, i]) / upper[i, i])
            block[:, k + 1 :] -= errors[-1][:, None] * upper[i, i + 1 : start + group_size]
        stop = start + group_size
        w[:, stop:] -= torch.stack(errors, 1) @ upper[start:stop, stop:]
    return rounded
"""

BANKS = {
    "6.7": Bank(
        wrong=(
            Wrong("not normalised", factors(" / (powers.max() * powers.min()).sqrt()", ""), SIZE),
            Wrong("over the smallest", factors("(powers.max() * powers.min()).sqrt()", "powers.min()"), FORMULA),
            Wrong("over the mean", factors("(powers.max() * powers.min()).sqrt()", "powers.mean()"), FORMULA),
            Wrong("no root", factors("(powers.max() * powers.min()).sqrt()", "(powers.max() * powers.min())"), SIZE),
            Wrong("always alpha 0.5", factors("** alpha", "** 0.5"), FORMULA),
            Wrong("1 - alpha", factors("** alpha", "** (1 - alpha)"), FORMULA),
            Wrong("the largest input", factors("x.abs().mean(0)", "x.abs().amax(0)"), FORMULA),
            Wrong("signed means", factors("x.abs().mean(0)", "x.mean(0)"), SIZE),
            Wrong("root mean squares", factors("x.abs().mean(0)", "x.square().mean(0).sqrt()"), FORMULA),
            Wrong("a mean of all", factors("x.abs().mean(0)", "x.abs().mean()"), SIZE),
            Wrong("means of tokens", factors("x.abs().mean(0)", "x.abs().mean(1)"), SIZE),
            Wrong("means of 0", factors(".clamp(min=1e-4)", ""), SMALL),
            Wrong("means of 0 plus a little", factors(".clamp(min=1e-4)", ".add(1e-6)"), SMALL),
            Wrong("a floor that is added", factors(".clamp(min=1e-4)", ".add(1e-4)"), SMALL),
            Wrong("a floor for the power", factors("x.abs().mean(0).clamp(min=1e-4) ** alpha", "(x.abs().mean(0) ** alpha).clamp(min=1e-4)"), SMALL),
        ),
        right=(
            Right("by logarithms", BY_LOGARITHMS),
            Right("one by one", ONE_BY_ONE),
            Right("two roots", factors("(powers.max() * powers.min()).sqrt()", "powers.max().sqrt() / powers.min().sqrt()")),
        ),
    ),
    "6.8": Bank(
        wrong=(
            Wrong("always alpha 0.5", awq("step / (num_steps - 1)", "0.5"), BEST),
            Wrong("never alpha 1", awq("step / (num_steps - 1)", "step / num_steps"), BEST),
            Wrong("never alpha 0", awq("step / (num_steps - 1)", "(step + 1) / num_steps"), BEST),
            Wrong("the last, not the best", awq("if error < best_error:", "if True:"), BEST),
            Wrong("the worst", awq("torch.inf", "-torch.inf").replace("error < best", "error > best"), BEST),
            Wrong("no rounding in the error", awq("dequantize(*quantize(weight * factors, bits, group_size))", "(weight * factors)"), BEST),
            Wrong("not divided again", awq("group_size)) / factors", "group_size))"), BEST),
            Wrong("multiplied again", awq("group_size)) / factors", "group_size)) * factors"), BEST),
            Wrong("divided before rounding", awq("weight * factors", "weight / factors").replace("size)) / factors", "size)) * factors"), BEST),
            Wrong("the weight's error", awq("(x @ rounded.T - wanted)", "(rounded - weight)"), BEST),
            Wrong("the signed error", awq(".square().sum()", ".sum()"), BEST),
            Wrong("the sum of magnitudes", awq(".square().sum()", ".abs().sum()"), SQUARES),
            Wrong("the first token's error", awq("(x @ rounded.T - wanted)", "(x @ rounded.T - wanted)[:1]"), BEST),
            Wrong("eleven steps", awq("    wanted, best_error", "    num_steps = 11\n    wanted, best_error"), BEST),
            Wrong("one group", awq("bits, group_size))", "bits, weight.shape[1]))"), BEST),
            Wrong("4 bits", awq("bits, group_size))", "4, group_size))"), BEST),
            Wrong("changes the weight", awq("quantize(weight * factors,", "quantize(weight.mul_(factors),"), BEST),
            Wrong("the rounded weight", awq("best_error, best = error, factors", "best_error, best = error, rounded"), BEST),
        ),
        right=(
            Right("as a minimum by a key", ALL_AT_ONCE),
            Right("by x^T x", BY_HESSIAN),
            Right("the mean of the squares", awq(".square().sum()", ".pow(2).mean().item()")),
        ),
    ),
    "6.9": Bank(
        wrong=(
            Wrong("to nearest", gptq("        w[:, i + 1 :] -= torch.outer(error, upper[i, i + 1 :])\n", ""), MAKES_UP),
            Wrong("the error added", gptq("w[:, i + 1 :] -= torch", "w[:, i + 1 :] += torch"), MAKES_UP),
            Wrong("not divided by the diagonal", gptq(" / upper[i, i]\n", "\n"), MAKES_UP),
            Wrong("the lower triangle", gptq("upper[i, i + 1 :])", "upper.T[i, i + 1 :])"), MAKES_UP),
            Wrong("the inverse in place of its factor", gptq("    for i in", "    upper = upper.T @ upper\n    for i in"), MAKES_UP),
            Wrong("a column in place of a row", gptq("upper[i, i + 1 :])", "upper[i + 1 :, i])"), MAKES_UP),
            Wrong("the next column only", gptq("w[:, i + 1 :] -= torch.outer(error, upper[i, i + 1 :])", "w[:, i + 1 : i + 2] -= torch.outer(error, upper[i, i + 1 : i + 2])"), MAKES_UP),
            Wrong("the error within its group only", gptq(
                "w[:, i + 1 :] -= torch.outer(error, upper[i, i + 1 :])",
                "end = (i // group_size + 1) * group_size\n        w[:, i + 1 : end] -= torch.outer(error, upper[i, i + 1 : end])",
            ), BEGINS),
            Wrong("ranges of the first weights", gptq("group = w[:, i", "group = weight[:, i"), BEGINS),
            Wrong("a range for each column", gptq("if i % group_size == 0:", "if True:"), NEAREST),
            Wrong("the first group's range", gptq("if i % group_size == 0:", "if i == 0:"), NEAREST),
            Wrong("one range for all outputs", gptq("group.amin(1)", "group.amin().expand(len(w))").replace("group.amax(1)", "group.amax()"), NEAREST),
            Wrong("codes beyond the range", gptq(".clamp(0, 2**bits - 1)", ""), GRID),
            Wrong("codes below 0", gptq(".clamp(0, 2**bits - 1)", ".clamp(max=2**bits - 1)"), GRID),
            Wrong("one code too many", gptq(".round().clamp(0, 2**bits - 1)", ".round().clamp(0, 2**bits)"), GRID),
            Wrong("one code too few", gptq("/ (2**bits - 1)", "/ 2**bits"), NEAREST),
            Wrong("cut off", gptq(".round()", ".floor()"), NEAREST),
            Wrong("not rounded", gptq(".round()", ""), NEAREST),
            Wrong("signed codes", gptq("minima = group.amin(1)", "minima = -group.abs().amax(1)").replace("(group.amax(1) - minima)", "(-2 * minima)"), NEAREST),
            Wrong("0 / 0", gptq(".clamp(min=1e-30)", ""), CONSTANT),
            Wrong("the weights that are left", gptq("return rounded", "return w"), NEAREST),
            Wrong("writes into the weight", gptq("weight.clone(), torch", "weight, torch"), MAKES_UP),
        ),
        right=(
            Right("in float64, the row of U from its beginning", IN_FLOAT64),
            Right("in blocks", IN_BLOCKS),
            Right("a scale of 1 for constant groups", gptq("scales.clamp(min=1e-30)", "torch.where(scales > 0, scales, 1)")),
        ),
    ),
}  # fmt: skip
