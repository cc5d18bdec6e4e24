"""Answers that prove the check of exercise 6.17."""

from twophase_labs.machine.bank import right, wrong

FITS, NOTHING, RATIO = "stays within the budget", "says when nothing fits", "sees beyond the best ratio"
LEAST = "does the least damage"

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

# fmt: off
BANKS = {
    "6.17": (
        wrong("below the budget, not at it", "size <= budget", "size < budget", by=FITS),
        wrong("an empty list when nothing fits", 'None, float("inf")', '[], float("inf")', by=NOTHING),
        wrong("the smallest when nothing fits", "return best",
              "return best\nbest_that_fits = choose_formats\ndef choose_formats(options, budget):\n    smallest = [min(range(len(formats)), key=lambda i: formats[i][0]) for formats in options]\n    return best_that_fits(options, budget) or smallest",
              by=NOTHING),
        wrong("damage of the worst part only", "damage = sum", "damage = max", by=RATIO),
        wrong("the largest that fits", LARGEST_IS_BEST, by=LEAST),
        right("a table of sizes", TABLE),
        right("recursive", RECURSIVE),
    ),
}
