"""Answers that prove the checks of exercises 6.6 and 6.7."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SIZE, BEST, ENDS, UNUSED = (
    "gives inputs of one size the factor 1",
    "finds the factors with the smallest error of the output",
    "tries alpha 0 and alpha 1",
    "bears an input that is always 0",
)
NEAREST, MAKES_UP, DAMPED, BEGINS, GRID, CONSTANT, REPEAT = (
    "rounds to nearest where inputs are independent",
    "makes up for errors in the columns to come",
    "adds 1 % of the diagonal's mean to the diagonal",
    "takes a group's range when the group begins",
    "stays within the group's 2^bits values",
    "keeps groups whose weights are all the same",
    "bears inputs that nearly repeat each other",
)
AWQ = """
def awq(weight, x, bits, group_size, num_steps=11):
    means, wanted = x.abs().mean(0).clamp(min=1e-4), x @ weight.T
    best_error, best = torch.inf, None
    for step in range(num_steps):
        powers = means ** (step / (num_steps - 1))
        factors = powers / (powers.max() * powers.min()).sqrt()
        rounded = dequantize(*quantize(weight * factors, bits, group_size)) / factors
        error = (x @ rounded.T - wanted).square().sum()
        if error < best_error:
            best_error, best = error, factors
    return best
"""
GPTQ = """
def gptq(weight, x, bits, group_size):
    x, w = x.double(), weight.double()
    hessian = x.T @ x
    hessian += 0.01 * hessian.diagonal().mean() * torch.eye(len(hessian))
    upper = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    rounded = torch.empty_like(w)
    for i in range(w.shape[1]):
        if i % group_size == 0:
            group = w[:, i : i + group_size]
            minima = group.amin(1)
            scales = (group.amax(1) - minima) / (2**bits - 1)
        codes = ((w[:, i] - minima) / scales.clamp(min=1e-30)).round().clamp(0, 2**bits - 1)
        rounded[:, i] = codes * scales + minima
        error = (w[:, i] - rounded[:, i]) / upper[i, i]
        w[:, i + 1 :] -= torch.outer(error, upper[i, i + 1 :])
    return rounded.float()
"""


def awq(old: str, new: str) -> str:
    assert old in AWQ, old
    return AWQ.replace(old, new)


def gptq(old: str, new: str) -> str:
    assert old in GPTQ, old
    return GPTQ.replace(old, new)


ALL_AT_ONCE = """
def awq(weight, x, bits, group_size, num_steps=11):
    means = torch.maximum(x.abs().sum(0) / len(x), torch.tensor(1e-4))
    alphas = [step / (num_steps - 1) for step in range(num_steps)]

    def factors_of(alpha):
        powers = means.log().mul(alpha).exp()
        return powers / (powers.max() * powers.min()) ** 0.5

    def loss(alpha):
        factors = factors_of(alpha)
        codes, scales, minima = quantize(weight * factors[None], bits, group_size)
        off = dequantize(codes, scales, minima) / factors[None] - weight
        return float(torch.linalg.norm(off @ x.T))

    return factors_of(min(alphas, key=loss))
"""
BY_HESSIAN = """
def awq(weight, x, bits, group_size, num_steps=11):
    gram, means, found = x.T @ x, x.abs().mean(0).clamp(min=1e-4), []
    for alpha in torch.linspace(0, 1, num_steps):
        factors = means**alpha
        factors /= torch.sqrt(factors.max()) * torch.sqrt(factors.min())
        off = dequantize(*quantize(weight * factors, bits, group_size)) / factors - weight
        found.append((float(((off @ gram) * off).sum()), factors))
    return min(found, key=lambda one: one[0])[1]
"""
ELIMINATED = """
def gptq(weight, x, bits, group_size):
    w, top = weight.clone().double(), 2**bits - 1
    h = x.double().t() @ x.double()
    inverse = torch.linalg.inv(h + torch.diag(torch.full((len(h),), 0.01 * float(h.diagonal().mean()), dtype=h.dtype)))
    out = []
    for i in range(len(h)):
        if i % group_size == 0:
            low = w[:, i : i + group_size].min(dim=1).values
            step = (w[:, i : i + group_size].max(dim=1).values - low) / top
        code = torch.where(step > 0, ((w[:, i] - low) / step).round(), torch.zeros_like(step)).clamp(0, top)
        out.append(low + code * step)
        w -= torch.outer((w[:, i] - out[-1]) / inverse[i, i], inverse[i])
        inverse = inverse - torch.outer(inverse[i], inverse[i]) / inverse[i, i]
    return torch.stack(out, dim=1).to(weight.dtype)
"""
IN_BLOCKS = """
def gptq(weight, x, bits, group_size):
    w, h = weight.double().clone(), x.double().T @ x.double()
    h.diagonal().add_(0.01 * h.diagonal().mean())
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    rounded = torch.zeros_like(w)
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
    return rounded.float()
"""

BANKS = {
    "6.6": Bank(
        wrong=(
            Wrong("not normalised", awq(" / (powers.max() * powers.min()).sqrt()", ""), BEST),
            Wrong("over the largest", awq("(powers.max() * powers.min()).sqrt()", "powers.min()"), BEST),
            Wrong("over the mean", awq("(powers.max() * powers.min()).sqrt()", "powers.mean()"), BEST),
            Wrong("no root", awq("(powers.max() * powers.min()).sqrt()", "(powers.max() * powers.min())"), SIZE),
            Wrong("always alpha 0.5", awq("(step / (num_steps - 1))", "0.5"), BEST),
            Wrong("never alpha 1", awq("(step / (num_steps - 1))", "(step / num_steps)"), BEST),
            Wrong("never alpha 0", awq("(step / (num_steps - 1))", "((step + 1) / num_steps)"), BEST),
            Wrong("the last, not the best", awq("if error < best_error:", "if True:"), BEST),
            Wrong("the worst", awq("torch.inf", "-torch.inf").replace("error < best", "error > best"), BEST),
            Wrong("no rounding in the error", awq("dequantize(*quantize(weight * factors, bits, group_size))", "(weight * factors)"), BEST),
            Wrong("not divided again", awq("group_size)) / factors", "group_size))"), BEST),
            Wrong("multiplied again", awq("group_size)) / factors", "group_size)) * factors"), BEST),
            Wrong("divided before rounding", awq("weight * factors", "weight / factors").replace("size)) / factors", "size)) * factors"), BEST),
            Wrong("the weight's error", awq("(x @ rounded.T - wanted)", "(rounded - weight)"), BEST),
            Wrong("the largest input", awq("x.abs().mean(0)", "x.abs().amax(0)"), BEST),
            Wrong("signed means", awq("x.abs().mean(0)", "x.mean(0)"), BEST),
            Wrong("root mean squares", awq("x.abs().mean(0)", "x.square().mean(0).sqrt()"), BEST),
            Wrong("the signed error", awq(".square().sum()", ".sum()"), BEST),
            Wrong("the first token's error", awq("(x @ rounded.T - wanted)", "(x @ rounded.T - wanted)[:1]"), BEST),
            Wrong("means of 0", awq(".clamp(min=1e-4)", ""), UNUSED),
            Wrong("means of 0 plus a little", awq(".clamp(min=1e-4)", ".add(1e-6)"), UNUSED),
            Wrong("eleven steps", awq("    best_error, best", "    num_steps = 11\n    best_error, best"), BEST),
            Wrong("one group", awq("bits, group_size))", "bits, weight.shape[1]))"), BEST),
            Wrong("4 bits", awq("bits, group_size))", "4, group_size))"), BEST),
            Wrong("changes the weight", awq("quantize(weight * factors,", "quantize(weight.mul_(factors),"), BEST),
        ),
        right=(
            Right("as a minimum by a key", ALL_AT_ONCE),
            Right("by x^T x", BY_HESSIAN),
            Right("the mean of the squares", awq(".square().sum()", ".pow(2).mean().item()")),
        ),
    ),
    "6.7": Bank(
        wrong=(
            Wrong("to nearest", gptq("        w[:, i + 1 :] -= torch.outer(error, upper[i, i + 1 :])\n", ""), MAKES_UP),
            Wrong("the error added", gptq("w[:, i + 1 :] -= torch", "w[:, i + 1 :] += torch"), MAKES_UP),
            Wrong("not divided by the diagonal", gptq(" / upper[i, i]\n", "\n"), MAKES_UP),
            Wrong("the lower factor", gptq(", upper=True)", ")"), MAKES_UP),
            Wrong("the factor of the Hessian", gptq("torch.linalg.inv(hessian)", "hessian"), MAKES_UP),
            Wrong("the inverse itself", gptq("torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)", "torch.linalg.inv(hessian)"), MAKES_UP),
            Wrong("a column in place of a row", gptq("upper[i, i + 1 :])", "upper[i + 1 :, i])"), MAKES_UP),
            Wrong("the next column only", gptq("w[:, i + 1 :] -= torch.outer(error, upper[i, i + 1 :])", "w[:, i + 1 : i + 2] -= torch.outer(error, upper[i, i + 1 : i + 2])"), MAKES_UP),
            Wrong("the error within its group only", gptq(
                "w[:, i + 1 :] -= torch.outer(error, upper[i, i + 1 :])",
                "end = (i // group_size + 1) * group_size\n        w[:, i + 1 : end] -= torch.outer(error, upper[i, i + 1 : end])",
            ), BEGINS),
            Wrong("ranges of the first weights", gptq("group = w[:, i", "group = weight.double()[:, i"), BEGINS),
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
            Wrong("no damping", gptq("    hessian += 0.01 * hessian.diagonal().mean() * torch.eye(len(hessian))\n", ""), DAMPED),
            Wrong("less damping", gptq("0.01", "0.0001"), DAMPED),
            Wrong("damping without a measure", gptq("hessian.diagonal().mean() * ", ""), DAMPED),
            Wrong("damping of every element", gptq(" * torch.eye(len(hessian))", ""), NEAREST),
            Wrong("the weights that are left", gptq("return rounded.float()", "return w.float()"), NEAREST),
            Wrong("writes into the weight", gptq("x.double(), weight.double()", "x.double(), weight").replace("upper = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)", "upper = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True).float()"), MAKES_UP),
            Wrong("outputs for inputs", gptq("hessian = x.T @ x\n", "hessian = w.T @ w\n"), NEAREST),
        ),
        right=(
            Right("by elimination", ELIMINATED),
            Right("in blocks", IN_BLOCKS),
            Right("twice the mean of the products", gptq("hessian = x.T @ x\n", "hessian = 2 / len(x) * x.T @ x\n")),
        ),
    ),
}  # fmt: skip
