"""Answers that prove the check of exercise 6.2."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SHAPES, DTYPES, MINIMUM, MAXIMUM, NEAREST, CONSTANT = (
    "has a code per weight, a scale and a minimum per group",
    "returns uint8 codes, float32 scales and minima",
    "begins at each group's minimum",
    "ends at each group's maximum",
    "rounds every weight to the nearest value",
    "keeps a group of equal weights as it is",
)
RIGHT = """
def quantize(weight, bits, group_size):
    groups = weight.float().unflatten(1, (-1, group_size))
    minima, maxima = groups.amin(-1), groups.amax(-1)
    scales = (maxima - minima) / (2**bits - 1)
    steps = torch.where(scales > 0, scales, 1)
    codes = ((groups - minima[..., None]) / steps[..., None]).round()
    return codes.flatten(1).to(torch.uint8), scales, minima
"""


def edited(*pairs: tuple[str, str]) -> str:
    text = RIGHT
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


SYMMETRIC = """
def quantize(weight, bits, group_size):
    groups = weight.float().unflatten(1, (-1, group_size))
    scales = 2 * groups.abs().amax(-1) / (2**bits - 1)
    minima = -groups.abs().amax(-1)
    steps = torch.where(scales > 0, scales, 1)
    codes = ((groups - minima[..., None]) / steps[..., None]).round()
    return codes.flatten(1).to(torch.uint8), scales, minima
"""
ZERO_POINT = """
def quantize(weight, bits, group_size):
    groups = weight.float().unflatten(1, (-1, group_size))
    minima, maxima = groups.amin(-1), groups.amax(-1)
    scales = (maxima - minima) / (2**bits - 1)
    steps = torch.where(scales > 0, scales, 1)
    zeros = (-minima / steps).round()
    codes = ((groups / steps[..., None]).round() + zeros[..., None]).clamp(0, 2**bits - 1)
    return codes.flatten(1).to(torch.uint8), scales, -zeros * scales
"""
OTHER_AXIS = """
def quantize(weight, bits, group_size):
    groups = weight.float().unflatten(0, (-1, group_size))
    minima, maxima = groups.amin(1), groups.amax(1)
    scales = (maxima - minima) / (2**bits - 1)
    steps = torch.where(scales > 0, scales, 1)
    codes = ((groups - minima[:, None]) / steps[:, None]).round()
    return codes.flatten(0, 1).to(torch.uint8), scales, minima
"""
STRIDED = """
def quantize(weight, bits, group_size):
    groups = weight.float().unflatten(1, (group_size, -1)).transpose(1, 2)
    minima, maxima = groups.amin(-1), groups.amax(-1)
    scales = (maxima - minima) / (2**bits - 1)
    steps = torch.where(scales > 0, scales, 1)
    codes = ((groups - minima[..., None]) / steps[..., None]).round()
    return codes.transpose(1, 2).flatten(1).to(torch.uint8), scales, minima
"""
ROW_BY_ROW = """
def quantize(weight, bits, group_size):
    last, (num_outputs, num_inputs) = 2**bits - 1, weight.shape
    codes = torch.zeros(num_outputs, num_inputs, dtype=torch.uint8)
    scales = torch.zeros(num_outputs, num_inputs // group_size)
    minima = torch.zeros_like(scales)
    for o in range(num_outputs):
        for g in range(num_inputs // group_size):
            part = slice(g * group_size, (g + 1) * group_size)
            group = weight[o, part].float()
            minima[o, g] = group.min()
            scales[o, g] = (group.max() - group.min()) / last
            if scales[o, g] > 0:
                codes[o, part] = torch.floor((group - group.min()) / scales[o, g] + 0.5).to(torch.uint8)
    return codes, scales, minima
"""
RESHAPED = """
def quantize(weight, bits, group_size):
    rows = weight.to(torch.float32).reshape(-1, group_size)
    low, high = rows.aminmax(dim=1, keepdim=True)
    scales = (high - low) / (2**bits - 1)
    codes = torch.nan_to_num((rows - low) / scales).round().clamp(0, 2**bits - 1)
    by_row = (len(weight), -1)
    return codes.to(torch.uint8).reshape(weight.shape), scales.reshape(by_row), low.reshape(by_row)
"""
NEAREST_OF_ALL = """
def quantize(weight, bits, group_size):
    groups = weight.float().unflatten(1, (-1, group_size))
    minima = groups.min(-1).values
    scales = (groups.max(-1).values - minima) / (2**bits - 1)
    values = minima[..., None] + scales[..., None] * torch.arange(2**bits)
    codes = (groups[..., None] - values[..., None, :]).abs().argmin(-1)
    return codes.flatten(1).to(torch.uint8), scales, minima
"""

BANKS = {
    "6.2": Bank(
        wrong=(
            Wrong("symmetric about zero", SYMMETRIC, MINIMUM),
            Wrong("a rounded zero point in place of the minimum", ZERO_POINT, MINIMUM),
            Wrong("groups of outputs", OTHER_AXIS, SHAPES),
            Wrong("groups of every n-th input", STRIDED, MINIMUM),
            Wrong("one group per row", edited(("(-1, group_size)", "(1, -1)")), SHAPES),
            Wrong(
                "group_size taken for the number of groups", edited(("(-1, group_size)", "(group_size, -1)")), SHAPES
            ),
            Wrong("one step too many", edited(("2**bits - 1", "2**bits")), MAXIMUM),
            Wrong(
                "one step too many, its code clamped",
                edited(("(2**bits - 1)", "2**bits"), (".round()", ".round().clamp(max=2**bits - 1)")),
                MAXIMUM,
            ),
            Wrong("range for 4 bits only", edited(("(2**bits - 1)", "15")), MAXIMUM),
            Wrong("cut off, not rounded", edited((".round()", "")), NEAREST),
            Wrong("the minimum not subtracted", edited(("(groups - minima[..., None])", "groups")), NEAREST),
            Wrong(
                "a smallest scale",
                edited(("(2**bits - 1)\n", "(2**bits - 1)\n    scales = scales.clamp(min=1e-5)\n")),
                MAXIMUM,
            ),
            Wrong(
                "a little added to what is divided by",
                edited(("/ steps[..., None]", "/ (scales + 1e-6)[..., None]")),
                NEAREST,
            ),
            Wrong("the weight's own dtype", edited(("weight.float()", "weight")), DTYPES),
            Wrong("int8 codes", edited(("torch.uint8", "torch.int8")), DTYPES),
            Wrong("codes still in groups", edited(("codes.flatten(1)", "codes")), SHAPES),
            Wrong("maximum of the row", edited(("groups.amax(-1)", "weight.float().amax(-1, keepdim=True)")), MAXIMUM),
            Wrong("0 / 0 as a code", edited(("torch.where(scales > 0, scales, 1)", "scales")), CONSTANT),
            Wrong(
                "a constant group becomes zero",
                edited(("return", "minima = torch.where(scales > 0, minima, 0)\n    return")),
                CONSTANT,
            ),
        ),
        right=(
            Right("group by group", ROW_BY_ROW),
            Right("reshape and nan_to_num", RESHAPED),
            Right("the nearest of all values", NEAREST_OF_ALL),
        ),
    ),
}
