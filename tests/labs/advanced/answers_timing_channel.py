"""Answers that prove the check of exercise 5.3."""

from tests.labs.advanced.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

ONE, ALL, ASKS, LENGTH, MACHINE = (
    "finds a prompt of one part",
    "finds all parts",
    "asks once for each option",
    "finds parts of any length",
    "works on any machine",
)
PAIRS = """
def recover(ask, parts):
    known, found = [], []
    for options, behind in zip(parts, [*parts[1:], [[]]]):
        times = [min(ask(known + option + more) for more in behind) for option in options]
        found.append(times.index(min(times)))
        known = known + options[found[-1]]
    return found
"""
FIXED_LIMIT = """
def recover(ask, parts):
    known, found = [], []
    for options in parts:
        pick = 0
        for position, option in enumerate(options):
            if ask(known + option) < 0.05:
                pick = position
        found.append(pick)
        known = known + options[pick]
    return found
"""
WHOLE_BLOCKS = """
def recover(ask, parts):
    known, found = [], []
    for options in parts:
        times = [ask(known + option) for option in options]
        found.append(times.index(min(times)))
        known = known + options[found[-1]][: len(options[found[-1]]) // 16 * 16]
    return found
"""
BY_ELIMINATION = """
def recover(ask, parts):
    known, found = [], []
    for options in parts:
        first_s = ask(known + options[0])
        best, best_s = 0, first_s
        for position in range(1, len(options)):
            seconds = ask([*known, *options[position]])
            if seconds < best_s:
                best, best_s = position, seconds
        found += [best]
        known += options[best]
    return found
"""
RECURSIVE = """
def recover(ask, parts):
    if not parts:
        return []
    order = sorted((ask(option), position) for position, option in enumerate(parts[0]))
    pick = order[0][1]
    return [pick, *recover(lambda rest: ask(parts[0][pick] + rest), parts[1:])]
"""

BANKS = opened_all(
    {
        "5.3": Bank(
            wrong=(
                Wrong(
                    "a warm-up first, as benchmarks do",
                    {1: "[[ask(known + option) for option in options] for _ in range(2)][1]"},
                    ONE,
                ),
                Wrong(
                    "the best of three", {1: "[min(ask(known + option) for _ in range(3)) for option in options]"}, ONE
                ),
                Wrong("the slowest", {2: "times.index(max(times))"}, ONE),
                Wrong("each part alone", {1: "[ask(option) for option in options]"}, ALL),
                Wrong("remembers nothing", {3: "[]"}, ALL),
                Wrong("remembers the last part only", {3: "options[pick]"}, ALL),
                Wrong("behind the first option of each part", {3: "known + options[0]"}, ALL),
                Wrong("asks for pairs", PAIRS, ALL),
                Wrong(
                    "twice each, and takes the first",
                    {1: "[(ask(known + o), ask(known + o))[0] for o in options]"},
                    ASKS,
                ),
                Wrong("cuts the parts to whole blocks", WHOLE_BLOCKS, LENGTH),
                Wrong("a number of seconds", FIXED_LIMIT, MACHINE),
            ),
            right=(
                Right("one loop", BY_ELIMINATION),
                Right("part by part, recursively", RECURSIVE),
            ),
        ),
    }
)
