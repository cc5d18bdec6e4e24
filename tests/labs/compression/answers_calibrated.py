"""Answers that prove the checks of exercises 6.5 and 6.6."""

from twophase_labs.machine.bank import right, wrong

BEST = "finds the factors with the smallest error of the output"
SQUARES, NEAREST = "goes by the sum of the squared errors", "rounds to nearest where inputs are independent"
MAKES_UP, BEGINS = "makes up for errors in the columns to come", "takes a group's range when the group begins"
GRID, CONSTANT = "stays within the group's 2^bits values", "keeps groups whose weights are all the same"

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

# fmt: off
BANKS = {
    "6.5": (
        wrong("never alpha 1", "num_steps - 1", "num_steps", by=BEST),
        wrong("the last, not the best", "error < best_error", "True", by=BEST),
        wrong("always alpha 0.5", "step / (num_steps - 1)", "0.5", by=BEST),
        wrong("changes the weight", "weight * factors", "weight.mul_(factors)", by=BEST),
        wrong("the weight's error", "x @ rounded.T - wanted", "rounded - weight", by=BEST),
        wrong("the signed error", "(x @ rounded.T - wanted).square(", "(x @ rounded.T - wanted", by=BEST),
        wrong("the worst", "torch.inf", "-torch.inf", "error < best_error", "error > best_error", by=BEST),
        wrong("the sum of magnitudes", "(x @ rounded.T - wanted).square", "(x @ rounded.T - wanted).abs", by=SQUARES),
        right("as a minimum by a key", ALL_AT_ONCE),
        right("by x^T x", BY_HESSIAN),
    ),
    "6.6": (
        wrong("the first group's range", "i % group_size", "i", by=NEAREST),
        wrong("a range for each column", "i % group_size == 0", "True", by=NEAREST),
        wrong("the lower triangle", "upper[i, i + 1 :]", "upper.T[i, i + 1 :]", by=MAKES_UP),
        wrong("the inverse in place of its factor", "for i in", "upper = upper.T @ upper\n    for i in", by=MAKES_UP),
        wrong("ranges of the first weights", "w[:, i : i + group_size]", "weight[:, i : i + group_size]", by=BEGINS),
        wrong("the error within its group only", "error = (w",
              "end = (i // group_size + 1) * group_size\n        error = (w", "w[:, i + 1 :", "w[:, i + 1:end",
              "i, i + 1 :", "i, i + 1:end", by=BEGINS),
        wrong("one code too many", ", 2**bits - 1", ", 2 ** bits", by=GRID),
        wrong("0 / 0", ".clamp(min=1e-30)", "", by=CONSTANT),
        right("in float64, the row of U from its beginning", IN_FLOAT64),
        right("in blocks", IN_BLOCKS),
    ),
}
