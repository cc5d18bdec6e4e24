"""Answers that prove the check of exercise 8.9."""

from twophase_labs.machine.bank import right, wrong

ENOUGH, WEIGHS = "takes a step that is enough", "weighs bytes against harm"
CAP, NONE = "does not pay for bytes that are not missing", "says None when all steps are not enough"
USELESS, FIRST, AGAIN = "takes no step that wins nothing", "takes the first of equals", "asks again after each step"
BACK, ANY = "gives back what is no longer needed", "is right for any service"

RECURSIVE = """
def triage(harm, missing, taken=()):
    short = missing(list(taken))
    if short <= 0:
        kept = list(taken)
        for name in taken:
            fewer = [each for each in kept if each is not name]
            kept = fewer if missing(fewer) <= 0 else kept
        return kept
    best, best_rate = None, 0
    for name, points in harm.items():
        if name not in taken:
            rate = min(short, short - missing([*taken, name])) / points
            if rate > best_rate:
                best, best_rate = name, rate
    return None if best is None else triage(harm, missing, (*taken, best))
"""
SORTED = """
def triage(harm, missing):
    names, order, left = list(harm), [], missing([])
    while left > 0:
        rated = []
        for place, name in enumerate(names):
            then = missing(order + [name])
            if then < left and name not in order:
                rated.append(((left - max(then, 0)) / harm[name], -place, name, then))
        if not rated:
            return None
        rated.sort()
        order.append(rated[-1][2])
        left = rated[-1][3]
    position = 0
    while position < len(order):
        fewer = order[:position] + order[position + 1 :]
        if missing(fewer) <= 0:
            order = fewer
        else:
            position += 1
    return order
"""

# fmt: off
BANKS = {
    "8.9": (
        wrong("uses up the list of steps", "for name in list", "harm.clear()\n    for name in list", by=ENOUGH),
        wrong("the most bytes", "(won[name], short) / harm[name]", "(won[name], short)", by=WEIGHS),
        wrong("bytes that nobody misses", "min(won[name], short)", "won[name]", by=CAP),
        wrong("the steps so far instead of None", "return None", "return taken", by=NONE),
        wrong("steps that win nothing", "won = {name: each for name, each in won.items() if each > 0}", "pass",
              by=USELESS),
        wrong("by name among equals", "max(won, key=lambda name: min(won[name], short) / harm[name])",
              "max(sorted(won), key=lambda name: min(won[name], short) / harm[name])", by=FIRST),
        wrong("what each wins at the start", "short - missing([*taken, name])", "missing([]) - missing([name])",
              by=AGAIN),
        wrong("given back from the last", "list(taken)", "reversed(taken)", by=BACK),
        wrong("the first five steps alone", "in harm", "in list(harm)[:5]", by=ANY),
        right("by recursion", RECURSIVE),
        right("sorted, and by position", SORTED),
    ),
}
