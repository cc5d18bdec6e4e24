"""Answers that prove the check of exercise 8.12."""

from twophase_labs.machine.bank import right, wrong

FIRST, AGAIN, NEXT = "takes the first accepted answer", "tries a tier again", "goes on to the next tier"
REJECTED, FALSY = "gives out nothing that was rejected", "takes an accepted answer, whatever it is"
WITHIN, CHEAPER, CALLS = "stays within the budget", "goes on where a cheaper tier fits", "makes no call too many"

WHILE = """
def answer_within(tiers, accepts, budget):
    total = 0
    for tier in tiers:
        left = tier[1]
        while left > 0 and budget - total >= tier[2]:
            found = tier[0]()
            total, left = total + found[1], left - 1
            if accepts(found[0]):
                return (found[0], total)
    return (None, total)
"""
FLAT = """
def answer_within(tiers, accepts, budget):
    left = budget
    tries = [(ask, most) for ask, num, most in tiers for _ in range(num)]
    for ask, most in tries:
        if most <= left:
            answer, used = ask()
            left -= used
            if accepts(answer):
                return answer, budget - left
    return None, budget - left
"""

# fmt: off
BANKS = {
    "8.12": (
        wrong("the answer alone", "answer, spent", "answer", by=FIRST),
        wrong("once each", "range(num_tries)", "range(1)", by=AGAIN),
        wrong("from nothing in each tier", "for _ in", "spent = 0\n        for _ in", by=NEXT),
        wrong("an empty text", "None, spent", "'', spent", by=REJECTED),
        wrong("0 is no answer", "(answer):", "(answer) and answer:", by=FALSY),
        wrong("once spent", "spent + max_tokens", "spent", by=WITHIN),
        wrong("done at the first that does not fit", ":\n                break",
              ":\n                return (None, spent)", by=CHEAPER),
        wrong("verifies twice", "(answer):", "(answer) and accepts(answer):", by=CALLS),
        right("with while", WHILE),
        right("a flat list of tries", FLAT),
    ),
}
