"""Answers that prove the check of exercise 5.5."""

from twophase_labs.machine.bank import right, wrong

FRONT, OWN = "keeps drafts in front", "accepts a draft that says the same"
IMPOSSIBLE, CHANCE = "never says what the model never says", "works where nothing is left to chance"
BONUS, DISTRIBUTION = "draws the last token from the model", "keeps the distribution"

RECURSIVELY = """
def verify(draft, p, q, chance):
    if not draft:
        return [chance.draw(p[0])]
    token = draft[0]
    if chance.uniform() * q[0, token] < p[0, token]:
        return [token] + verify(draft[1:], p[1:], q[1:], chance)
    return [chance.draw(np.where(p[0] > q[0], p[0] - q[0], 0.0))]
"""
IN_LOGS = """
def verify(draft, p, q, chance):
    for i, token in enumerate(draft):
        surplus = np.maximum(p[i], q[i]) - q[i]
        if chance.uniform() * q[i][token] >= p[i][token]:
            return list(draft[:i]) + [chance.draw(surplus / surplus.sum())]
    return list(draft) + [chance.draw(p[-1])]
"""

# fmt: off
BANKS = {
    "5.5": (
        wrong("writes into p", "p[i] - q[i]", "np.subtract(p[i], q[i], out=p[i])", by=FRONT),
        wrong("looks at three drafts", "enumerate(draft)", "enumerate(draft[:3])", by=OWN),
        wrong("draws from the draft after a rejection", "np.clip(p[i] - q[i], 0, None)", "q[i]", by=IMPOSSIBLE),
        wrong("the distance, not the surplus", ".clip(p[i] - q[i], 0, None", ".abs(p[i] - q[i]", by=IMPOSSIBLE),
        wrong("exact, and hardly any faster: does not look at the draft",
              {1: "return [chance.draw(p[0])] if (p[:len(draft)] != q).any() else draft + [chance.draw(p[-1])]"},
              by=CHANCE),
        wrong("the last row of the drafts", "len(draft)", "len(draft) - 1", by=BONUS),
        wrong("draws from the model after a rejection", "np.clip(p[i] - q[i], 0, None)", "p[i]", by=DISTRIBUTION),
        wrong("accepts only what the model says more often", "min(1, p[i, token] /", "float(p[i, token] >=",
              by=DISTRIBUTION),
        right("one draft, then the others", RECURSIVELY),
        right("without dividing", IN_LOGS),
    ),
}
