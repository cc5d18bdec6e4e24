"""Answers that prove the check of exercise 6.17."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

FITS, NOTHING, RATIO, LEAST = (
    "stays within the budget",
    "says when nothing fits",
    "sees beyond the best ratio",
    "does the least damage",
)
RIGHT = """
import itertools

def choose_formats(options, budget):
    best, least = None, float("inf")
    for chosen in itertools.product(*(range(len(formats)) for formats in options)):
        size = sum(formats[number][0] for formats, number in zip(options, chosen))
        damage = sum(formats[number][1] for formats, number in zip(options, chosen))
        if size <= budget and damage < least:
            best, least = list(chosen), damage
    return best
"""


def edited(old: str, new: str) -> str:
    assert old in RIGHT, old
    return RIGHT.replace(old, new)


GREEDY = """
def choose_formats(options, budget):
    chosen = [min(range(len(f)), key=lambda i: f[i][0]) for f in options]
    def size(): return sum(f[i][0] for f, i in zip(options, chosen))
    if size() > budget:
        return None
    while True:
        best = None
        for part, formats in enumerate(options):
            old = formats[chosen[part]]
            for number, new in enumerate(formats):
                more, saved = new[0] - old[0], old[1] - new[1]
                if saved > 0 and size() + more <= budget:
                    rate = saved / max(more, 1e-9)
                    if best is None or rate > best[0]:
                        best = rate, part, number
        if best is None:
            return chosen
        chosen[best[1]] = best[2]
"""
WORST_FIRST = """
def choose_formats(options, budget):
    chosen = [min(range(len(f)), key=lambda i: f[i][0]) for f in options]
    left = budget - sum(f[i][0] for f, i in zip(options, chosen))
    if left < 0:
        return None
    for part in sorted(range(len(options)), key=lambda p: -options[p][chosen[p]][1]):
        formats = options[part]
        fit = [i for i in range(len(formats)) if formats[i][0] - formats[chosen[part]][0] <= left]
        best = min(fit, key=lambda i: formats[i][1])
        left -= formats[best][0] - formats[chosen[part]][0]
        chosen[part] = best
    return chosen
"""
LARGEST_IS_BEST = """
import itertools

def choose_formats(options, budget):
    best, most = None, -1
    for chosen in itertools.product(*(range(len(formats)) for formats in options)):
        size = sum(formats[number][0] for formats, number in zip(options, chosen))
        if most < size <= budget:
            best, most = list(chosen), size
    return best
"""
EVENLY = """
def choose_formats(options, budget):
    share = budget / len(options)
    chosen = []
    for formats in options:
        fit = [i for i in range(len(formats)) if formats[i][0] <= share]
        if not fit:
            return None
        chosen.append(min(fit, key=lambda i: formats[i][1]))
    return chosen
"""
SMALLEST = (
    RIGHT
    + """
best_that_fits = choose_formats

def choose_formats(options, budget):
    smallest = [min(range(len(formats)), key=lambda i: formats[i][0]) for formats in options]
    return best_that_fits(options, budget) or smallest
"""
)
TWO_UPGRADES = """
import itertools

def choose_formats(options, budget):
    smallest = [min(range(len(f)), key=lambda i: f[i][0]) for f in options]
    best, least = None, float("inf")
    parts = range(len(options))
    for some in itertools.combinations(parts, min(2, len(options))):
        for numbers in itertools.product(*(range(len(options[part])) for part in some)):
            chosen = list(smallest)
            for part, number in zip(some, numbers):
                chosen[part] = number
            size = sum(f[i][0] for f, i in zip(options, chosen))
            damage = sum(f[i][1] for f, i in zip(options, chosen))
            if size <= budget and damage < least:
                best, least = chosen, damage
    return best
"""
TABLE = """
def choose_formats(options, budget):
    plans = {0.0: (0.0, [])}                   # size: least damage and the choice
    for formats in options:
        longer = {}
        for size, (damage, chosen) in plans.items():
            for number, (more, cost) in enumerate(formats):
                key, value = size + more, (damage + cost, chosen + [number])
                if key <= budget and (key not in longer or value[0] < longer[key][0]):
                    longer[key] = value
        plans = longer
    return min(plans.values(), key=lambda plan: plan[0])[1] if plans else None
"""
RECURSIVE = """
def choose_formats(options, budget):
    def best(rest, left):
        if not rest:
            return (0.0, []) if left >= 0 else None
        found = None
        for number, (size, damage) in enumerate(rest[0]):
            if size <= left:
                tail = best(rest[1:], left - size)
                if tail is not None and (found is None or damage + tail[0] < found[0]):
                    found = damage + tail[0], [number, *tail[1]]
        return found
    found = best(list(options), budget)
    return None if found is None else found[1]
"""

BANKS = {
    "6.17": Bank(
        wrong=(
            Wrong("best ratio first", GREEDY, rejected_by=RATIO),
            Wrong("worst part first", WORST_FIRST, rejected_by=RATIO),
            Wrong("the largest that fits", LARGEST_IS_BEST, rejected_by=LEAST),
            Wrong("two upgrades at most", TWO_UPGRADES, rejected_by=LEAST),
            Wrong("every part gets an equal share", EVENLY, rejected_by=FITS),
            Wrong("below the budget, not at it", edited("size <= budget", "size < budget"), rejected_by=FITS),
            Wrong("no budget", edited("size <= budget and ", ""), rejected_by=FITS),
            Wrong("an empty list when nothing fits", edited("best, least = None", "best, least = []"),
                  rejected_by=NOTHING),
            Wrong("the smallest when nothing fits", SMALLEST, rejected_by=NOTHING),
            Wrong("damage of the worst part only", edited("damage = sum(formats[number][1] for formats, number in "
                  "zip(options, chosen))", "damage = max(formats[number][1] for formats, number in "
                  "zip(options, chosen))"), rejected_by=RATIO),
        ),
        right=(
            Right("a table of sizes", TABLE),
            Right("recursive", RECURSIVE),
        ),
    ),
}  # fmt: skip
