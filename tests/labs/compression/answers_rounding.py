"""Answers that prove the check of exercise 6.2."""

from twophase_labs.machine.bank import right, wrong

SHAPES = "has a code per weight, a scale and a minimum per group"
DTYPES, MINIMUM = "returns uint8 codes, float32 scales and minima", "begins at each group's minimum"
MAXIMUM, NEAREST = "ends at each group's maximum", "rounds every weight to the nearest value"
CONSTANT = "keeps a group of equal weights as it is"

RESHAPED = """
def quantize(weight, bits, group_size):
    rows = weight.to(torch.float32).reshape(-1, group_size)
    low, high = rows.aminmax(dim=1, keepdim=True)
    scales = (high - low) / (2**bits - 1)
    codes = torch.nan_to_num((rows - low) / scales).round().clamp(0, 2**bits - 1)
    by_row = (len(weight), -1)
    return codes.to(torch.uint8).reshape(weight.shape), scales.reshape(by_row), low.reshape(by_row)
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

# fmt: off
BANKS = {
    "6.2": (
        wrong("codes still in groups", ".flatten(1)", "", by=SHAPES),
        wrong("one group per row", "-1, group_size", "1, -1", by=SHAPES),
        wrong("int8 codes", "codes.flatten(1).to(torch.uint8)", "codes.flatten(1).to(torch.int8)", by=DTYPES),
        wrong("groups of every n-th input", ".float().unflatten(1, (-1, group_size)",
              ".float().unflatten(1, (group_size, -1)).transpose(1, 2", "codes.flatten",
              "codes.transpose(1, 2).flatten", by=MINIMUM),
        wrong("range for 4 bits only", "2**bits - 1", "15", by=MAXIMUM),
        wrong("one step too many", "**bits - 1", " ** bits", by=MAXIMUM),
        wrong("the minimum not subtracted", "groups - minima[..., None]", "groups", by=NEAREST),
        wrong("0 / 0 as a code", "torch.where(scales > 0, scales, 1)", "scales", by=CONSTANT),
        right("reshape and nan_to_num", RESHAPED),
        right("group by group", ROW_BY_ROW),
    ),
}
