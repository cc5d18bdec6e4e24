"""Answers that prove the check of exercise 6.13."""

from twophase_labs.machine.bank import right, wrong

LARGEST, MAGNITUDE, FIRST = "keeps the two largest of each four", "goes by magnitude", "takes the first of equals"
DTYPE = "keeps the dtype"

BY_LISTS = """
def two_of_four(weight):
    values, places = [], []
    for row in weight:
        for start in range(0, len(row), 4):
            four = row[start : start + 4]
            best = sorted(sorted(range(4), key=lambda j: -abs(float(four[j])))[:2])
            values += [four[j] for j in best]
            places += best
    half = weight.shape[0], weight.shape[1] // 2
    return torch.stack(values).view(half), torch.tensor(places).view(half)
"""
BY_RANK = """
def two_of_four(weight):
    fours = weight.unflatten(1, (-1, 4))
    size = fours.abs()
    earlier = torch.ones(4, 4).tril(-1).bool()          # [j, i]: i stands before j
    beats = (size[..., None, :] > size[..., :, None]) | ((size[..., None, :] == size[..., :, None]) & earlier)
    is_kept = beats.sum(-1) < 2
    half = weight.shape[0], weight.shape[1] // 2
    return fours[is_kept].view(half), is_kept.nonzero()[:, -1].view(half)
"""

# fmt: off
BANKS = {
    "6.13": (
        wrong("in the order of size", ".sort(dim=-1).values", "", by=LARGEST),
        wrong("values and places in different orders", "fours.gather(-1, places)", "fours.gather(-1, order[..., :2])",
              by=LARGEST),
        wrong("places in the row", "places.flatten", "(places + 4 * torch.arange(places.shape[1])[:, None]).flatten",
              by=LARGEST),
        wrong("fours of a column", ".unflatten(1, (-1, 4)", ".flatten().view(4, -1).T.reshape(weight.shape[0], -1, 4",
              by=LARGEST),
        wrong("by value, not by magnitude", ".abs()", "", by=MAGNITUDE),
        wrong("magnitudes as values", "fours.gather", "fours.abs().gather", by=MAGNITUDE),
        wrong("the last of equals", "order[..., :2]",
              "(3 - fours.flip(-1).abs().sort(dim=-1, descending=True, stable=True).indices)[..., :2]", by=FIRST),
        wrong("in float32", "fours.gather", "fours.float().gather", by=DTYPE),
        right("with lists", BY_LISTS),
        right("counting who is larger", BY_RANK),
    ),
}
