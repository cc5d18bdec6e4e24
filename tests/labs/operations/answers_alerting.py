"""Answers that prove the check of exercise 8.5."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

INACTIVE, WAITS, CLOCK, ONCE, DIP, RESOLVES, MISSING, KEEPS, FIRES, AGAIN, ANY, APART = (
    "stays inactive up to its threshold",
    "waits for `for_s`",
    "fires by the clock",
    "fires at once with for_s=0",
    "begins to wait again after a dip",
    "resolves",
    "takes a missing sample as not true",
    "keeps firing for `keep_firing_s`",
    "keeps only what fires",
    "waits again once it has resolved",
    "is right for any series",
    "keeps alerts apart",
)
SOLUTION = """
class Alert:
    def __init__(self, threshold, for_s, keep_firing_s=0.0):
        self.threshold, self.for_s, self.keep_firing_s = threshold, for_s, keep_firing_s
        self.state, self.true_since_s, self.false_since_s = "inactive", None, None

    def evaluate(self, now_s, value):
        if value is not None and value > self.threshold:
            self.false_since_s = None
            if self.true_since_s is None:
                self.true_since_s = now_s
            if self.state != "firing":
                self.state = "firing" if now_s - self.true_since_s >= self.for_s else "pending"
            return self.state
        self.true_since_s = None
        if self.state == "firing":
            if self.false_since_s is None:
                self.false_since_s = now_s
            if now_s - self.false_since_s < self.keep_firing_s:
                return self.state
        self.state, self.false_since_s = "inactive", None
        return self.state
"""
COUNTS_LOOKS = """
class Alert:
    def __init__(self, threshold, for_s, keep_firing_s=0.0):
        self.threshold, self.num_needed, self.num_true = threshold, int(for_s // 15) + 1, 0

    def evaluate(self, now_s, value):
        self.num_true = self.num_true + 1 if value is not None and value > self.threshold else 0
        return "firing" if self.num_true >= self.num_needed else "pending" if self.num_true else "inactive"
"""
ADDS_UP = """
class Alert:
    def __init__(self, threshold, for_s, keep_firing_s=0.0):
        self.threshold, self.for_s, self.before_s, self.total_s = threshold, for_s, None, 0.0

    def evaluate(self, now_s, value):
        if value is None or value <= self.threshold:
            self.before_s = None
            return "inactive"
        self.total_s += 0.0 if self.before_s is None else now_s - self.before_s
        self.before_s = now_s
        return "firing" if self.total_s >= self.for_s else "pending"
"""
NO_PATIENCE = """
class Alert:
    def __init__(self, threshold, for_s, keep_firing_s=0.0):
        self.threshold = threshold

    def evaluate(self, now_s, value):
        return "firing" if value is not None and value > self.threshold else "inactive"
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


def edited(old: str, new: str) -> str:
    assert old in SOLUTION, old
    return SOLUTION.replace(old, new)


BANKS = {
    "8.5": Bank(
        wrong=(
            Wrong("at the threshold", edited("value > self.threshold", "value >= self.threshold"), INACTIVE),
            Wrong("no patience", NO_PATIENCE, WAITS),
            Wrong(
                "never fires",
                edited('"firing" if now_s - self.true_since_s >= self.for_s else "pending"', '"pending"'),
                WAITS,
            ),
            Wrong("fires a look later", edited(">= self.for_s", "> self.for_s"), WAITS),
            Wrong("counts looks", COUNTS_LOOKS, WAITS),
            Wrong("pending is inactive", edited('else "pending"', 'else "inactive"'), WAITS),
            Wrong(
                "the first look never fires",
                edited("self.true_since_s = now_s\n", 'self.true_since_s = now_s\n                return "pending"\n'),
                ONCE,
            ),
            Wrong("adds the times up", ADDS_UP, DIP),
            Wrong("a dip changes nothing", edited("        self.true_since_s = None\n        if", "        if"), DIP),
            Wrong(
                "never resolves", edited("if now_s - self.false_since_s < self.keep_firing_s:", "if True:"), RESOLVES
            ),
            Wrong("keeps a minute", edited("keep_firing_s=0.0", "keep_firing_s=60.0"), RESOLVES),
            Wrong(
                "pending for a while first",
                edited(
                    'self.state, self.false_since_s = "inactive", None',
                    'self.state, self.false_since_s = "pending" if self.state == "firing" else "inactive", None',
                ),
                RESOLVES,
            ),
            Wrong(
                "missing is as before",
                edited(
                    "    def evaluate(self, now_s, value):\n",
                    "    def evaluate(self, now_s, value):\n        if value is None:\n            return self.state\n",
                ),
                MISSING,
            ),
            Wrong("missing is true", edited("value is not None and value >", "value is None or value >"), MISSING),
            Wrong("missing is 0", edited("value is not None and value >", "(value or 0.0) >"), MISSING),
            Wrong("keeps nothing", edited("if now_s - self.false_since_s < self.keep_firing_s:", "if False:"), KEEPS),
            Wrong("keeps a look longer", edited("< self.keep_firing_s", "<= self.keep_firing_s"), RESOLVES),
            Wrong(
                "from its last look",
                edited(
                    "            if self.false_since_s is None:\n                self.false_since_s = now_s",
                    "            self.false_since_s = now_s",
                ),
                KEEPS,
            ),
            Wrong(
                "a look in between changes nothing",
                edited("            self.false_since_s = None\n            if", "            if"),
                KEEPS,
            ),
            Wrong(
                "kept, but pending when it is true again", edited('if self.state != "firing":\n', "if True:\n"), KEEPS
            ),
            Wrong("keeps pending ones", edited('if self.state == "firing":', 'if self.state != "inactive":'), FIRES),
            Wrong(
                "fires at once the second time",
                edited(
                    'self.state, self.false_since_s = "inactive", None',
                    'self.for_s = 0.0 if self.state == "firing" else self.for_s\n        self.state, self.false_since_s = "inactive", None',
                ),
                RESOLVES,
            ),
            Wrong(
                "remembers an old dip",
                edited('self.state, self.false_since_s = "inactive", None', 'self.state = "inactive"').replace(
                    "            self.false_since_s = None\n            if", "            if"
                ),
                KEEPS,
            ),
            Wrong(
                "one state for all",
                SOLUTION.replace("self.true_since_s", "Alert.true_since_s").replace(
                    "self.state, Alert.true_since_s, self.false_since_s = ",
                    "self.state, Alert.true_since_s, self.false_since_s = ",
                ),
                APART,
            ),
        ),
        right=(
            Right("from its history", FROM_HISTORY),
            Right("as Prometheus has it", AS_PROMETHEUS),
        ),
    ),
}
