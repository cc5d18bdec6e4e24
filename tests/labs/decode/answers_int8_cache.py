"""Answers that prove the check of exercise 3.12."""

from twophase_labs.machine.bank import right, wrong

KEEPS_A, KEEPS_SCALES = "keeps a byte per number and a scale per token and head", "keeps scales above zero"
LETS_A, IS_OFF, USES_THE = "lets a loud token harm no other", "is off by half a step at most", "uses the whole range"
WORKS_FOR, ALONE, TAKES_HALF = "works for rows of any size", "leaves its inputs alone", "takes half precision"
TAKES_AN = "takes an empty part"

HALF_SCALES = """
def dequantise(data, scale):
    return data.float() * scale[..., None]

def quantise(x, q_max=127):
    largest = x.abs().amax(-1)
    scale = largest.clamp(min=1e-30) / q_max
    data = (x.float() / scale.float()[..., None]).round()
    return (data.to(torch.int8), scale.float())
"""
MULTIPLIES = """
def quantise(x, q_max=127):
    x = x.to(torch.float32)
    largest = x.abs().max(dim=-1).values
    largest = torch.where(largest == 0, torch.ones_like(largest), largest)
    data = torch.clamp(torch.round(x * (q_max / largest)[..., None]), -q_max, q_max)
    return data.to(torch.int8), largest / q_max

def dequantise(data, scale):
    return scale.unsqueeze(-1) * data
"""
NUMPY_DOUBLE = """
def dequantise(data, scale):
    return data.float() * scale[..., None]

def quantise(x, q_max=127):
    a = x.detach().double().numpy()
    top = np.abs(a).max(axis=2, initial=0.0)
    s = np.where(top == 0, 1.0, top / q_max)
    return (torch.from_numpy(np.rint(a / s[:, :, None]).astype(np.int8)), torch.from_numpy(s.astype(np.float32)))
"""

# fmt: off
BANKS = {
    "3.12": (
        wrong("a scale per element", ".abs().amax(-1", ".float().abs(", "(x / scale[..., None]).round()",
              "x.sign() * q_max", by=KEEPS_A),
        wrong("a row of zeros divides by zero", ".clamp(min=1e-30)", "", by=KEEPS_SCALES),
        wrong("one scale for everything", ".abs().amax(-1", ".float().abs().max().expand(x.shape[:-1]", by=LETS_A),
        wrong("forgets the sign", "x.abs()", "x.float()", by=IS_OFF),
        wrong("always 127 steps", ".clamp(min=1e-30) / q_max", ".clamp(min=1e-30) / 127", by=USES_THE),
        wrong("clamps at 1e-2", ".clamp(min=1e-30", ".clamp(min=0.01", by=WORKS_FOR),
        wrong("divides in place", "x / scale[..., None]", "x.div_(scale[..., None]).round()", by=ALONE),
        wrong("half scales", HALF_SCALES, by=TAKES_HALF),
        wrong("fails without any", "largest = x.abs().amax(-1)", "x.max()\n    largest = x.abs().amax(-1)",
              by=TAKES_AN),
        right("multiplies by the reciprocal", MULTIPLIES),
        right("numpy double", NUMPY_DOUBLE),
    ),
}
