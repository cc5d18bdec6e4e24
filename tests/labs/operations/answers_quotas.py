"""Answers that prove the check of exercise 8.2."""

from twophase_labs.machine.bank import right, wrong

APART, FULL, FREE, EVENLY = "keeps buckets apart", "starts full", "loses nothing by asking", "refills evenly"
DEBT, MOST, TAKE = "runs into debt", "never holds more than its capacity", "is brought up to date by take"

ASKING_COSTS = """
class TokenBucket:
    def __init__(self, rate_per_s, capacity, now_s):
        self.rate_per_s, self.capacity = rate_per_s, capacity
        self.level, self.since_s = capacity, now_s

    def refill(self, now_s):
        self.level = min(self.capacity, self.level + (now_s - self.since_s) * self.rate_per_s)
        self.since_s = now_s

    def wait_s(self, now_s):
        self.refill(now_s)
        wait_s = max(0.0, (1 - self.level) / self.rate_per_s)
        self.level -= 0.01 * wait_s
        return wait_s

    def take(self, amount, now_s):
        self.refill(now_s)
        self.level -= amount
"""
BY_A_MOMENT = """
class TokenBucket:
    def __init__(self, rate_per_s, capacity, now_s):
        # When it was, or will be, empty.
        self.rate_per_s, self.capacity = rate_per_s, capacity
        self.empty_s = now_s - capacity / rate_per_s

    def wait_s(self, now_s):
        self.empty_s = max(self.empty_s, now_s - self.capacity / self.rate_per_s)
        return max(0.0, self.empty_s + 1 / self.rate_per_s - now_s)

    def take(self, amount, now_s):
        self.empty_s = max(self.empty_s, now_s - self.capacity / self.rate_per_s) + amount / self.rate_per_s
"""

# fmt: off
BANKS = {
    "8.2": (
        wrong("one bucket for all", "def __init__(self, rate_per_s, capacity, now_s):",
              "def __init__(self, rate_per_s, capacity, now_s, shared={}):\n        self.__dict__ = shared", by=APART),
        wrong("until it is above 0", "1 - self.level", "-self.level", by=FULL),
        wrong("one, whatever it cost", {3: "self.refill(now_s)\nself.level -= 1"}, by=FULL),
        wrong("asking takes something", ASKING_COSTS, by=FREE),
        wrong("never refills", {1: "self.level"}, by=EVENLY),
        wrong("no more than is there", ".level -= amount", ".level = max(0.0, self.level - amount)", by=DEBT),
        wrong("never full", {1: "self.level + passed_s * self.rate_per_s"}, by=MOST),
        wrong("takes without refilling", {3: "self.level -= amount"}, by=TAKE),
        right("the moment when it is empty", BY_A_MOMENT),
        right("refills afterwards, too",
              {3: "self.refill(now_s)\nself.level = self.level - amount\nself.refill(now_s)"}),
    ),
}
