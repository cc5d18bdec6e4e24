"""Answers that prove the check of exercise 8.2."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

FULL, EVENLY, MOST, TAKE, DEBT, FREE, DAY, APART = (
    "starts full",
    "refills evenly",
    "never holds more than its capacity",
    "is brought up to date by take",
    "runs into debt",
    "loses nothing by asking",
    "is right on any day",
    "keeps buckets apart",
)
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
FROM_THE_BEGINNING = """
class TokenBucket:
    def __init__(self, rate_per_s, capacity, now_s):
        self.rate_per_s, self.capacity, self.start_s, self.deeds = rate_per_s, capacity, now_s, []

    def level(self, now_s):
        level, then_s = self.capacity, self.start_s
        for amount, when_s in [*self.deeds, (0, now_s)]:
            level = min(self.capacity, level + self.rate_per_s * (when_s - then_s)) - amount
            then_s = when_s
        return level

    def wait_s(self, now_s):
        missing = 1 - self.level(now_s)
        return missing / self.rate_per_s if missing > 0 else 0.0

    def take(self, amount, now_s):
        self.deeds.append((amount, now_s))
"""
SHARED = """
class TokenBucket:
    level = since_s = None

    def __init__(self, rate_per_s, capacity, now_s):
        self.rate_per_s, self.capacity = rate_per_s, capacity
        if TokenBucket.level is None:
            TokenBucket.level, TokenBucket.since_s = capacity, now_s

    def refill(self, now_s):
        more = max(0.0, now_s - TokenBucket.since_s) * self.rate_per_s
        TokenBucket.level, TokenBucket.since_s = min(self.capacity, TokenBucket.level + more), now_s

    def wait_s(self, now_s):
        self.refill(now_s)
        return max(0.0, (1 - TokenBucket.level) / self.rate_per_s)

    def take(self, amount, now_s):
        self.refill(now_s)
        TokenBucket.level -= amount
"""
HEAD = """
class TokenBucket:
    def __init__(self, rate_per_s, capacity, now_s):
        self.rate_per_s, self.capacity = rate_per_s, capacity
        self.level, self.since_s = {start}

    def refill(self, now_s):
        self.level = min(self.capacity, self.level + (now_s - self.since_s) * self.rate_per_s)
        {since}

    def wait_s(self, now_s):
        self.refill(now_s)
        return max(0.0, (1 - self.level) / self.rate_per_s)

    def take(self, amount, now_s):
        self.refill(now_s)
        self.level -= amount
"""
EMPTY = HEAD.format(start="0.0, now_s", since="self.since_s = now_s")
ASKING_COSTS = HEAD.format(start="capacity, now_s", since="self.since_s = now_s").replace(
    "        return max(0.0, (1 - self.level) / self.rate_per_s)",
    "        wait_s = max(0.0, (1 - self.level) / self.rate_per_s)\n        self.level -= 0.01 * wait_s\n        return wait_s",
)
NEVER_SINCE = HEAD.format(start="capacity, now_s", since="pass")

BANKS = {
    "8.2": Bank(
        wrong=(
            Wrong("starts empty", EMPTY, FULL),
            Wrong("at once full again", {1: "self.capacity"}, FULL),
            Wrong("refills by ones", {1: "min(self.capacity, self.level + int(passed_s * self.rate_per_s))"}, EVENLY),
            Wrong("one per second", {1: "min(self.capacity, self.level + passed_s)"}, EVENLY),
            Wrong("never full", {1: "self.level + passed_s * self.rate_per_s"}, MOST),
            Wrong("never refills", {1: "self.level"}, EVENLY),
            Wrong("counts time twice", NEVER_SINCE, EVENLY),
            Wrong("until it is full", {2: "max(0.0, (self.capacity - self.level) / self.rate_per_s)"}, FULL),
            Wrong("until it is above 0", {2: "max(0.0, -self.level / self.rate_per_s)"}, FULL),
            Wrong("waits below zero", {2: "(1 - self.level) / self.rate_per_s"}, FULL),
            Wrong(
                "at least a second",
                {2: "0.0 if self.level >= 1 else max(1.0, (1 - self.level) / self.rate_per_s)"},
                FULL,
            ),
            Wrong("a fixed wait", {2: "0.0 if self.level >= 1 else 1 / self.rate_per_s"}, EVENLY),
            Wrong("asking takes something", ASKING_COSTS, FREE),
            Wrong("no more than is there", {3: "self.refill(now_s)\nself.level = max(0.0, self.level - amount)"}, DEBT),
            Wrong("one, whatever it cost", {3: "self.refill(now_s)\nself.level -= 1"}, FULL),
            Wrong("takes without refilling", {3: "self.level -= amount"}, TAKE),
            Wrong("forgets the time before", {3: "self.since_s = now_s\nself.level -= amount"}, EVENLY),
            Wrong("one bucket for all", SHARED, APART),
        ),
        right=(
            Right("the moment when it is empty", BY_A_MOMENT),
            Right("played from the beginning", FROM_THE_BEGINNING),
            Right(
                "refills afterwards, too",
                {3: "self.refill(now_s)\nself.level = self.level - amount\nself.refill(now_s)"},
            ),
        ),
    ),
}
