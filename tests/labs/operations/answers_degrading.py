"""Answers that prove the check of exercise 8.9."""

from twophase_labs.machine.bank import right, wrong

NOTHING, APART, RISES = "does nothing without pressure", "keeps ladders apart", "rises under pressure"
ONE, TIME, DOWN = "climbs one rung at a time", "gives each rung time to help", "comes down again"
HOLDS, BOTH = "holds between the two marks", "needs a short queue and a free pool to come down"
UNBROKEN, SAVES = "counts unbroken calm", "saves the engine in a flood"

LAST_TIMES = """
class Ladder:
    def __init__(self):
        self.level = 0
        self.changed = None
        self.troubled = None

    def look(self, now_s, kv_usage, queue_age_s):
        if self.troubled is None:
            self.troubled = now_s
        if kv_usage >= 0.85 or queue_age_s >= 2:
            self.troubled = now_s
            if self.level < 4 and (self.changed is None or now_s >= self.changed + 3):
                self.level += 1
                self.changed = now_s
        elif not (kv_usage < 0.70 and queue_age_s < 1):
            self.troubled = now_s
        elif self.level and now_s >= self.troubled + 10:
            self.level -= 1
            self.troubled = now_s
        return self.level
"""
COUNTING = """
class Ladder:
    def __init__(self):
        self.level = 0
        self.wait = 0
        self.calm_looks = 0

    def look(self, now_s, kv_usage, queue_age_s):
        self.wait = max(0, self.wait - 1)
        if kv_usage >= 0.85 or queue_age_s >= 2:
            self.calm_looks = 0
            if self.wait == 0:
                self.level = min(4, self.level + 1)
                self.wait = 4
        elif kv_usage < 0.70 and queue_age_s < 1:
            self.calm_looks += 1
            if self.calm_looks > 10:
                self.level = max(0, self.level - 1)
                self.calm_looks = 1
        else:
            self.calm_looks = 0
        return self.level
"""

# fmt: off
BANKS = {
    "8.9": (
        wrong("alarmed too early", "kv_usage >= 0.85", "kv_usage >= 0.6", by=NOTHING),
        wrong("one level for all", "def __init__",
              "level, raised_s, calm_s = (0, float('-inf'), None)\n    def __init__",
              'self.level, self.raised_s, self.calm_s = 0, float("-inf"), None', "pass",
              "self.level, self.raised_s = self.level + 1, now_s",
              "(Ladder.level, Ladder.raised_s) = self.level + 1, now_s", "self.level, self.calm_s",
              "Ladder.level, self.calm_s", by=APART),
        wrong("too late", "kv_usage >= 0.85", "kv_usage >= 0.95", by=RISES),
        wrong("to the top at once", "self.level + 1", "4", by=ONE),
        wrong("a rung each second", "now_s - self.raised_s >= 2 and self.level < 4", "self.level < 4", by=TIME),
        wrong("down to the ground", "self.level - 1", "0", by=DOWN),
        wrong("one mark for both", "kv_usage < 0.70", "kv_usage < 0.85", by=HOLDS),
        wrong("down while requests wait", "queue_age_s < 1", "queue_age_s < 2", by=BOTH),
        wrong("calm is whatever is no pressure", "not is_calm", "kv_usage >= 0.85 or queue_age_s >= 2", by=UNBROKEN),
        wrong("on whole seconds only", "is_calm = kv_usage < 0.70 and queue_age_s < 1",
              "if now_s != int(now_s):\n            return self.level\n        is_calm = kv_usage < 0.70 and queue_age_s < 1",
              by=SAVES),
        right("remembers the last trouble", LAST_TIMES),
        right("counts looks", COUNTING),
    ),
}
