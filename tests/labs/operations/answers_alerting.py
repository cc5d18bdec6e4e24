"""Answers that prove the check of exercise 8.5."""

from twophase_labs.machine.bank import right, wrong

INACTIVE, WAITS, DIP = "stays inactive up to its threshold", "waits for `for_s`", "begins to wait again after a dip"
RESOLVES, ONCE, MISSING = "resolves", "fires at once with for_s=0", "takes a missing sample as not true"
KEEPS, FIRES, APART = "keeps firing for `keep_firing_s`", "keeps only what fires", "keeps alerts apart"

AS_PROMETHEUS = """
class Alert:
    def __init__(self, threshold, for_s, keep_firing_s=0.0):
        self.threshold, self.hold, self.keep = threshold, for_s, keep_firing_s
        self.active_at = self.keep_since = None
        self.is_firing = False

    def evaluate(self, now_s, value):
        if value is not None and value > self.threshold:
            self.keep_since = None
            self.active_at = now_s if self.active_at is None else self.active_at
            self.is_firing = self.is_firing or now_s - self.active_at >= self.hold
        elif self.is_firing:
            self.keep_since = now_s if self.keep_since is None else self.keep_since
            if now_s - self.keep_since >= self.keep:
                self.active_at, self.keep_since, self.is_firing = None, None, False
        else:
            self.active_at = None
        if self.active_at is None:
            return "inactive"
        return "firing" if self.is_firing else "pending"
"""
FROM_HISTORY = """
class Alert:
    def __init__(self, threshold, for_s, keep_firing_s=0.0):
        self.threshold, self.for_s, self.keep_s, self.past = threshold, for_s, keep_firing_s, []

    def evaluate(self, now_s, value):
        holds = value is not None and value > self.threshold
        run = [now_s]
        for time_s, held, _ in reversed(self.past):
            if held != holds:
                break
            run.append(time_s)
        fired = bool(self.past) and self.past[-1][2] == "firing"
        lasted_s = now_s - run[-1]
        if holds:
            state = "firing" if fired or lasted_s >= self.for_s else "pending"
        else:
            state = "firing" if fired and lasted_s < self.keep_s else "inactive"
        self.past.append((now_s, holds, state))
        return state
"""

# fmt: off
BANKS = {
    "8.5": (
        wrong("at the threshold", "value > self.threshold", "value >= self.threshold", by=INACTIVE),
        wrong("never fires", '"firing" if now_s - self.true_since_s >= self.for_s else "pending"', "'pending'",
              by=WAITS),
        wrong("a dip changes nothing", "self.true_since_s = None", "pass", by=DIP),
        wrong("never resolves", "now_s - self.false_since_s < self.keep_firing_s", "True", by=RESOLVES),
        wrong("the first look never fires", "self.true_since_s = now_s",
              "self.true_since_s = now_s\n                return 'pending'", by=ONCE),
        wrong("missing is 0", "value is not None and value", "(value or 0.0)", by=MISSING),
        wrong("kept, but pending when it is true again", 'self.state != "firing"', "True", by=KEEPS),
        wrong("keeps pending ones", '.state == "firing"', ".state != 'inactive'", by=FIRES),
        wrong("one state for all", "def __init__(self, threshold, for_s, keep_firing_s=0.0):",
              "def __init__(self, threshold, for_s, keep_firing_s=0.0, shared={}):\n        self.__dict__ = shared",
              by=APART),
        right("as Prometheus has it", AS_PROMETHEUS),
        right("from its history", FROM_HISTORY),
    ),
}
