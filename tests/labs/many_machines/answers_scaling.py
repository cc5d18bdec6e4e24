"""Answers that prove the check of exercise 7.13."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

GROWS, UP, STILL, ONE, WAITS, LARGEST, ONCE, DAY, APART, EDGE, DEFAULT = (
    "grows in proportion to the load",
    "rounds up",
    "keeps still near the target",
    "keeps at least one engine",
    "shrinks only after a quiet time",
    "shrinks to the largest number wanted lately",
    "grows at once",
    "is right on any day",
    "keeps policies apart",
    "keeps still on the edge, too",
    "has a tolerance of 0.1 unless told otherwise",
)
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

BANKS = {
    "7.13": Bank(
        wrong=(
            Wrong(
                "one more at a time",
                {1: "num_engines + 1 if ratio > 1 else max(1, math.ceil(num_engines * ratio))"},
                GROWS,
            ),
            Wrong("the load of one engine", {1: "max(1, math.ceil(ratio))"}, GROWS),
            Wrong("rounds down", {1: "max(1, int(num_engines * ratio))"}, UP),
            Wrong("rounds to the nearest", {1: "max(1, round(num_engines * ratio + 1e-9))"}, UP),
            Wrong("none at all", {1: "math.ceil(num_engines * ratio)"}, ONE),
            Wrong("two at least", {1: "max(2, math.ceil(num_engines * ratio))"}, ONE),
            Wrong("never still", {2: "False"}, STILL),
            Wrong("still above the target only", {2: "0 <= ratio - 1 <= self.tolerance"}, STILL),
            Wrong("a fixed tolerance", {2: "abs(ratio - 1) <= 0.1"}, STILL),
            Wrong("the tolerance in units of load", {2: "abs(load - self.target) <= self.tolerance"}, STILL),
            Wrong("not on the edge", {2: "abs(ratio - 1) < self.tolerance"}, EDGE),
            Wrong("no tolerance unless given", NO_TOLERANCE, DEFAULT),
            Wrong(
                "looks of 15 s",
                {3: "self.recent[-int(self.down_after_s // 15) :] if self.down_after_s >= 15 else []"},
                WAITS,
            ),
            Wrong("remembers everything", {3: "list(self.recent)"}, WAITS),
            Wrong("remembers nothing", {3: "[]"}, WAITS),
            Wrong("at once", {4: "wish"}, WAITS),
            Wrong("the smallest lately", {4: "min(n for _, n in self.recent)"}, WAITS),
            Wrong("may grow by looking back", {4: "max(n for _, n in self.recent)"}, LARGEST),
            Wrong("waits to grow", WAITS_TO_GROW, ONCE),
            Wrong("one memory for all", SHARED_MEMORY, APART),
        ),
        right=(
            Right("with a deque", WITH_DEQUE),
            Right("by the ratio", {1: "max(1, math.ceil(num_engines * ratio))"}),
        ),
    ),
}
