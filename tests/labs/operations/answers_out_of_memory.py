"""Answers that prove the check of exercise 8.9."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

ENOUGH, NOTHING, WEIGHS, CAP, USELESS, NONE, FIRST, AGAIN, BACK, ANY = (
    "takes a step that is enough",
    "takes nothing where nothing is missing",
    "weighs bytes against harm",
    "does not pay for bytes that are not missing",
    "takes no step that wins nothing",
    "says None when all steps are not enough",
    "takes the first of equals",
    "asks again after each step",
    "gives back what is no longer needed",
    "is right for any service",
)
SOLUTION = """
def triage(harm, missing):
    taken = []
    while (short := missing(taken)) > 0:
        won = {name: short - missing([*taken, name]) for name in harm if name not in taken}
        won = {name: each for name, each in won.items() if each > 0}
        if not won:
            return None
        taken.append(max(won, key=lambda name: min(won[name], short) / harm[name]))
    for name in list(taken):
        without = [other for other in taken if other != name]
        if missing(without) <= 0:
            taken = without
    return taken
"""


def edited(*pairs: tuple[str, str]) -> str:
    text = SOLUTION
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


GIVE_BACK = SOLUTION[SOLUTION.index("    for name in list") : SOLUTION.index("    return taken")]
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

BANKS = {
    "8.9": Bank(
        wrong=(
            Wrong(
                "the first step only",
                edited(
                    (
                        "while (short := missing(taken)) > 0:",
                        "short = missing(taken)\n    for _ in range(int(short > 0)):",
                    )
                ),
                WEIGHS,
            ),
            Wrong(
                "in the order given",
                edited(
                    ("max(won, key=lambda name: min(won[name], short) / harm[name])", "next(iter(won))"),
                    (GIVE_BACK, ""),
                ),
                ENOUGH,
            ),
            Wrong(
                "one step too many", edited((") > 0:\n        won", ") > -25:\n        won"), (GIVE_BACK, "")), ENOUGH
            ),
            Wrong("the most bytes", edited((" / harm[name])", ")")), WEIGHS),
            Wrong(
                "the least harm",
                edited(
                    (
                        "max(won, key=lambda name: min(won[name], short) / harm[name])",
                        "min(won, key=lambda name: (harm[name], -won[name]))",
                    )
                ),
                WEIGHS,
            ),
            Wrong("bytes that nobody misses", edited(("min(won[name], short)", "won[name]")), CAP),
            Wrong(
                "steps that win nothing",
                edited(("        won = {name: each for name, each in won.items() if each > 0}\n", "")),
                USELESS,
            ),
            Wrong("the steps so far instead of None", edited(("return None", "return taken")), NONE),
            Wrong(
                "the first five steps alone",
                edited(("for name in harm if", "for name in list(harm)[:5] if")),
                ANY,
            ),
            Wrong("an error instead of None", edited(("return None", "raise ValueError('it does not fit')")), NONE),
            Wrong("by name among equals", edited(("max(won, key", "max(sorted(won), key")), FIRST),
            Wrong("the last of equals", edited(("max(won, key", "max(reversed(won), key")), FIRST),
            Wrong(
                "what each wins at the start",
                edited(("short - missing([*taken, name])", "missing([]) - missing([name])")),
                AGAIN,
            ),
            Wrong(
                "uses up the list of steps",
                edited(("    for name in list(taken)", "    harm.clear()\n    for name in list(taken)")),
                ENOUGH,
            ),
            Wrong("nothing is given back", edited((GIVE_BACK, "")), BACK),
            Wrong(
                "given back one only", edited(("            taken = without\n", "            return without\n")), BACK
            ),
            Wrong("given back from the last", edited(("in list(taken)", "in reversed(taken)")), BACK),
            Wrong("what is just full does not fit", edited(("missing(without) <= 0", "missing(without) < 0")), BACK),
        ),
        right=(Right("by recursion", RECURSIVE), Right("sorted, and by position", SORTED)),
    ),
}
