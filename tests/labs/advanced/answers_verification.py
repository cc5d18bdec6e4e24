"""Answers that prove the check of exercise 5.5."""

from tests.labs.advanced.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

FRONT, OWN, IMPOSSIBLE, CHANCE, BONUS, DISTRIBUTION, OFTEN = (
    "keeps drafts in front",
    "accepts a draft that says the same",
    "never says what the model never says",
    "works where nothing is left to chance",
    "draws the last token from the model",
    "keeps the distribution",
    "accepts as often as possible",
)
GOES_ON = """
def verify(draft, p, q, chance):
    tokens = []
    for i, token in enumerate(draft):
        if chance.uniform() >= min(1, p[i, token] / q[i, token]):
            token = chance.draw(np.clip(p[i] - q[i], 0, None))
        tokens.append(token)
    return tokens + [chance.draw(p[len(draft)])]
"""
BY_AGREEMENT = """
def verify(draft, p, q, chance):
    tokens = []
    for i, token in enumerate(draft):
        tokens.append(chance.draw(p[i]))
        if tokens[-1] != token:
            return tokens
    return tokens + [chance.draw(p[len(draft)])]
"""
IGNORES = """
def verify(draft, p, q, chance):
    return [chance.draw(p[0])] if (p[: len(draft)] != q).any() else draft + [chance.draw(p[-1])]
"""
LIKELIEST = """
def verify(draft, p, q, chance):
    tokens = []
    for i, token in enumerate(draft):
        if chance.uniform() >= min(1, p[i, token] / q[i, token]):
            return tokens + [int(p[i].argmax())]
        tokens.append(token)
    return tokens + [chance.draw(p[len(draft)])]
"""
ONE_NUMBER = """
def verify(draft, p, q, chance):
    number, tokens = chance.uniform(), []
    for i, token in enumerate(draft):
        if number >= min(1, p[i, token] / q[i, token]):
            return tokens + [chance.draw(np.clip(p[i] - q[i], 0, None))]
        tokens.append(token)
    return tokens + [chance.draw(p[len(draft)])]
"""
IN_LOGS = """
def verify(draft, p, q, chance):
    for i, token in enumerate(draft):
        surplus = np.maximum(p[i], q[i]) - q[i]
        if chance.uniform() * q[i][token] >= p[i][token]:
            return list(draft[:i]) + [chance.draw(surplus / surplus.sum())]
    return list(draft) + [chance.draw(p[-1])]
"""
COUNT_FIRST = """
def verify(draft, p, q, chance):
    num_accepted = 0
    while num_accepted < len(draft):
        model, guess = p[num_accepted], q[num_accepted]
        token = draft[num_accepted]
        if model[token] < guess[token] and chance.uniform() > model[token] / guess[token]:
            break
        num_accepted += 1
    left = p[num_accepted].copy()
    if num_accepted < len(draft):
        left -= q[num_accepted]
        left[left < 0] = 0
    return draft[:num_accepted] + [chance.draw(left)]
"""
RECURSIVELY = """
def verify(draft, p, q, chance):
    if not draft:
        return [chance.draw(p[0])]
    token = draft[0]
    if chance.uniform() * q[0, token] < p[0, token]:
        return [token] + verify(draft[1:], p[1:], q[1:], chance)
    return [chance.draw(np.where(p[0] > q[0], p[0] - q[0], 0.0))]
"""

BANKS = opened_all(
    {
        "5.5": Bank(
            wrong=(
                Wrong("goes on behind a rejection", GOES_ON, FRONT),
                Wrong("accepts what the draft found likely", {1: "q[i, token]"}, OWN),
                Wrong("accepts with the model's probability", {1: "p[i, token]"}, OWN),
                Wrong(
                    "accepts only what the model says more often",
                    {1: "float(p[i, token] >= q[i, token])"},
                    DISTRIBUTION,
                ),
                Wrong("accepts everything", {1: "1"}, IMPOSSIBLE),
                Wrong("upside down", {1: "min(1, q[i, token] / max(p[i, token], 1e-9))"}, IMPOSSIBLE),
                Wrong("draws from the model after a rejection", {2: "p[i]"}, DISTRIBUTION),
                Wrong("draws from the draft after a rejection", {2: "q[i]"}, IMPOSSIBLE),
                Wrong("the distance, not the surplus", {2: "np.abs(p[i] - q[i])"}, IMPOSSIBLE),
                Wrong(
                    "anything but the rejected one",
                    {2: "np.where(np.arange(len(p[i])) == token, 0, p[i])"},
                    DISTRIBUTION,
                ),
                Wrong("the likeliest after a rejection", LIKELIEST, DISTRIBUTION),
                Wrong("the last row of the drafts", {3: "p[len(draft) - 1]"}, BONUS),
                Wrong("one random number for all", ONE_NUMBER, DISTRIBUTION),
                Wrong("exact, and hardly any faster: does not look at the draft", IGNORES, CHANCE),
                Wrong("exact, and slower than need be: draws and compares", BY_AGREEMENT, OWN),
            ),
            right=(
                Right("without dividing", IN_LOGS),
                Right("first how many, then the token", COUNT_FIRST),
                Right("one draft, then the others", RECURSIVELY),
            ),
        ),
    }
)
