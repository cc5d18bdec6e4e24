"""Answers that prove the check of exercise 7.13."""

from twophase_labs.machine.bank import right, wrong

GROWS, APART, UP = "grows in proportion to the load", "keeps policies apart", "rounds up"
STILL, EDGE = "keeps still near the target", "keeps still on the edge, too"
DEFAULT, ONE = "has a tolerance of 0.1 unless told otherwise", "keeps at least one engine"
WAITS, LARGEST = "shrinks only after a quiet time", "shrinks to the largest number wanted lately"
ONCE = "grows at once"

SHARED_MEMORY = """
class Scaling:
    recent = []

    def __init__(self, target, down_after_s, tolerance=0.1):
        self.target, self.down_after_s, self.tolerance = target, down_after_s, tolerance

    def num_wanted(self, now_s, num_engines, load):
        ratio = load / self.target
        wish = num_engines if abs(ratio - 1) <= self.tolerance else max(1, math.ceil(num_engines * ratio))
        Scaling.recent = [(t, n) for t, n in Scaling.recent if t >= now_s - self.down_after_s] + [(now_s, wish)]
        return wish if wish >= num_engines else min(num_engines, max(n for _, n in Scaling.recent))
"""
NO_TOLERANCE = """
class Scaling:
    def __init__(self, target, down_after_s, tolerance=0.0):
        self.target, self.down_after_s, self.tolerance = target, down_after_s, tolerance
        self.recent = []

    def num_wanted(self, now_s, num_engines, load):
        ratio = load / self.target
        wish = num_engines if abs(ratio - 1) <= self.tolerance else max(1, math.ceil(num_engines * ratio))
        self.recent = [(t, n) for t, n in self.recent if t >= now_s - self.down_after_s] + [(now_s, wish)]
        return wish if wish >= num_engines else min(num_engines, max(n for _, n in self.recent))
"""
WAITS_TO_GROW = """
class Scaling:
    def __init__(self, target, down_after_s, tolerance=0.1):
        self.target, self.down_after_s, self.tolerance = target, down_after_s, tolerance
        self.recent = []

    def num_wanted(self, now_s, num_engines, load):
        ratio = load / self.target
        wish = num_engines if abs(ratio - 1) <= self.tolerance else max(1, math.ceil(num_engines * ratio))
        self.recent = [(t, n) for t, n in self.recent if t >= now_s - self.down_after_s] + [(now_s, wish)]
        if wish >= num_engines:
            return max(num_engines, min(n for _, n in self.recent))
        return min(num_engines, max(n for _, n in self.recent))
"""
WITH_DEQUE = """
from collections import deque

class Scaling:
    def __init__(self, target, down_after_s, tolerance=0.1):
        self.target, self.patience, self.tolerance, self.past = target, down_after_s, tolerance, deque()

    def num_wanted(self, now_s, num_engines, load):
        if (1 - self.tolerance) * self.target <= load <= (1 + self.tolerance) * self.target:
            wish = num_engines
        else:
            wish = max(math.ceil(num_engines * load / self.target), 1)
        self.past.append((now_s, wish))
        while self.past[0][0] < now_s - self.patience:
            self.past.popleft()
        return max(wish, min(num_engines, max(n for _, n in self.past)))
"""

# fmt: off
BANKS = {
    "7.13": (
        wrong("the load of one engine", {1: "max(1, math.ceil(ratio))"}, by=GROWS),
        wrong("one memory for all", SHARED_MEMORY, by=APART),
        wrong("rounds down", {1: "max(1, int(num_engines * ratio))"}, by=UP),
        wrong("never still", {2: "False"}, by=STILL),
        wrong("not on the edge", "(ratio - 1) <=", "(ratio - 1) <", by=EDGE),
        wrong("no tolerance unless given", NO_TOLERANCE, by=DEFAULT),
        wrong("none at all", {1: "math.ceil(num_engines * ratio)"}, by=ONE),
        wrong("remembers nothing", {3: "[]"}, by=WAITS),
        wrong("may grow by looking back", "min(num_engines, max", "max(", by=LARGEST),
        wrong("waits to grow", WAITS_TO_GROW, by=ONCE),
        right("by the ratio", {1: "max(1, math.ceil(num_engines * ratio))"}),
        right("with a deque", WITH_DEQUE),
    ),
}
