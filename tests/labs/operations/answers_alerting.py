"""Answers that prove the check of exercise 8.4."""

from twophase_labs.machine.bank import right, wrong

INACTIVE, WAITS, DIP = "stays inactive up to its threshold", "waits for `for_s`", "begins to wait again after a dip"
RESOLVES, ONCE = "resolves", "fires at once with for_s=0"
MISSING, APART = "takes a missing sample as not true", "keeps alerts apart"

WITH_A_DEADLINE = """
class Alert:
    def __init__(self, threshold, for_s):
        self.threshold, self.hold, self.fires_at_s = threshold, for_s, None

    def evaluate(self, now_s, value):
        if value is None or value <= self.threshold:
            self.fires_at_s = None
        elif self.fires_at_s is None:
            self.fires_at_s = now_s + self.hold
        if self.fires_at_s is None:
            return "inactive"
        return "pending" if now_s < self.fires_at_s else "firing"
"""
FROM_HISTORY = """
class Alert:
    def __init__(self, threshold, for_s):
        self.threshold, self.for_s, self.past = threshold, for_s, []

    def evaluate(self, now_s, value):
        self.past.append((now_s, value is not None and value > self.threshold))
        run = []
        for time_s, held in reversed(self.past):
            if not held:
                break
            run.append(time_s)
        if not run:
            return "inactive"
        return "firing" if now_s - run[-1] >= self.for_s else "pending"
"""

# fmt: off
BANKS = {
    "8.4": (
        wrong("at the threshold", "value > self.threshold", "value >= self.threshold", by=INACTIVE),
        wrong("never fires", '"firing" if now_s - self.first_true_s >= self.for_s else "pending"', "'pending'",
              by=WAITS),
        wrong("a dip changes nothing", "            self.first_true_s = None\n            return", "            return", by=DIP),
        wrong("never resolves", "if not is_true:",
              "fires = self.first_true_s is not None and now_s - self.first_true_s > self.for_s\n"
              "        if not is_true and not fires:", by=RESOLVES),
        wrong("the first look never fires", "self.first_true_s = now_s",
              "self.first_true_s = now_s\n            return 'pending'", by=ONCE),
        wrong("missing is 0", "value is not None and value", "(value or 0.0)", by=MISSING),
        wrong("one state for all", "def __init__(self, threshold, for_s):",
              "def __init__(self, threshold, for_s, shared={}):\n        self.__dict__ = shared", by=APART),
        right("with a deadline", WITH_A_DEADLINE),
        right("from its history", FROM_HISTORY),
    ),
}
