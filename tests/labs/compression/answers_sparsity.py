"""Answers that prove the check of exercise 6.13."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

LARGEST, MAGNITUDE, FIRST, DTYPE = (
    "keeps the two largest of each four",
    "goes by magnitude",
    "takes the first of equals",
    "keeps the dtype",
)
SOLVED = """
def two_of_four(weight):
    fours = weight.unflatten(1, (-1, 4))
    order = fours.abs().sort(dim=-1, descending=True, stable=True).indices
    places = order[..., :2].sort(dim=-1).values
    return fours.gather(-1, places).flatten(1), places.flatten(1)
"""


def edited(old: str, new: str) -> str:
    assert old in SOLVED, old
    return SOLVED.replace(old, new)


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
NUMPY = """
import numpy as np


def two_of_four(weight):
    fours = weight.unflatten(1, (-1, 4))
    order = np.argsort(-fours.abs().double().numpy(), axis=-1, kind="stable")
    places = torch.from_numpy(np.sort(order[..., :2], axis=-1))
    return fours.gather(-1, places).flatten(1), places.flatten(1).to(torch.uint8)
"""

BANKS = {
    "6.13": Bank(
        wrong=(
            Wrong("by value, not by magnitude", edited("fours.abs().sort", "fours.sort"), MAGNITUDE),
            Wrong("magnitudes as values", edited("fours.gather", "fours.abs().gather"), MAGNITUDE),
            Wrong("the two smallest", edited("descending=True", "descending=False"), LARGEST),
            Wrong("in the order of size", edited("order[..., :2].sort(dim=-1).values", "order[..., :2]"), LARGEST),
            Wrong(
                "values and places in different orders",
                edited("fours.gather(-1, places)", "fours.gather(-1, order[..., :2])"),
                LARGEST,
            ),
            Wrong(
                "places in the row",
                edited("places.flatten(1)", "(places + 4 * torch.arange(places.shape[1])[:, None]).flatten(1)"),
                LARGEST,
            ),
            Wrong(
                "the last of equals",
                edited(
                    "order[..., :2].sort(dim=-1)",
                    "(3 - fours.flip(-1).abs().sort("
                    "dim=-1, descending=True, stable=True).indices)[..., :2].sort(dim=-1)",
                ),
                FIRST,
            ),
            Wrong(
                "fours of a column",
                edited(
                    "weight.unflatten(1, (-1, 4))", "weight.flatten().view(4, -1).T.reshape(weight.shape[0], -1, 4)"
                ),
                LARGEST,
            ),
            Wrong("in float32", edited("fours.gather", "fours.float().gather"), DTYPE),
            Wrong(
                "the weight with zeros",
                "def two_of_four(weight):\n    fours = weight.unflatten(1, (-1, 4))\n"
                "    places = fours.abs().topk(2).indices\n"
                "    return torch.zeros_like(fours).scatter(-1, places, fours.gather(-1, places)).flatten(1), places\n",
                LARGEST,
            ),
        ),
        right=(Right("with lists", BY_LISTS), Right("counting who is larger", BY_RANK), Right("with numpy", NUMPY)),
    ),
}
