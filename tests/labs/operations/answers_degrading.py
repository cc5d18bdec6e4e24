"""Answers that prove the check of exercise 8.10."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

NOTHING, RISES, ONE, TIME, DOWN, HOLDS, BOTH, UNBROKEN, APART, SAVES = (
    "does nothing without pressure",
    "rises under pressure",
    "climbs one rung at a time",
    "gives each rung time to help",
    "comes down again",
    "holds between the two marks",
    "needs a short queue and a free pool to come down",
    "counts unbroken calm",
    "keeps ladders apart",
    "saves the engine in a flood",
)
SOLUTION = """
class Ladder:
    def __init__(self):
        self.level, self.raised_s, self.calm_s = 0, float("-inf"), None

    def look(self, now_s, kv_usage, queue_age_s):
        is_calm = kv_usage < 0.70 and queue_age_s < 1
        if not is_calm:
            self.calm_s = None
        elif self.calm_s is None:
            self.calm_s = now_s
        if kv_usage >= 0.85 or queue_age_s >= 2:
            if now_s - self.raised_s >= 2 and self.level < 4:
                self.level, self.raised_s = self.level + 1, now_s
        elif is_calm and now_s - self.calm_s >= 10 and self.level > 0:
            self.level, self.calm_s = self.level - 1, now_s
        return self.level
"""


def edited(*pairs: tuple[str, str]) -> str:
    text = SOLUTION
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


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
            self.changed = self.troubled = now_s
        return self.level
"""

BANKS = {
    "8.10": Bank(
        wrong=(
            Wrong("alarmed too early", edited((">= 0.85", ">= 0.6")), NOTHING),
            Wrong("starts at one", edited(("= 0, float", "= 1, float")), NOTHING),
            Wrong("the pool alone", edited((" or queue_age_s >= 2", "")), RISES),
            Wrong("the queue alone", edited(("kv_usage >= 0.85 or ", "")), RISES),
            Wrong("both at once", edited(("0.85 or ", "0.85 and ")), RISES),
            Wrong("too late", edited((">= 0.85", ">= 0.95")), RISES),
            Wrong("three rungs", edited(("self.level < 4", "self.level < 3")), RISES),
            Wrong("slowly", edited(("self.raised_s >= 2", "self.raised_s >= 9")), RISES),
            Wrong("to the top at once", edited(("self.level + 1", "4")), ONE),
            Wrong("a rung each second", edited(("now_s - self.raised_s >= 2 and ", "")), TIME),
            Wrong("stays up", edited(("self.level - 1, now_s", "self.level, now_s")), DOWN),
            Wrong("down at once", edited(("self.calm_s >= 10", "self.calm_s >= 3")), DOWN),
            Wrong("down to the ground", edited(("self.level - 1, now_s", "0, now_s")), DOWN),
            Wrong("one mark for both", edited(("< 0.70", "< 0.85")), HOLDS),
            Wrong("down while requests wait", edited((" and queue_age_s < 1", " and queue_age_s < 2")), BOTH),
            Wrong(
                "calm is whatever is no pressure",
                edited(
                    (
                        "        if not is_calm:\n            self.calm_s = None\n        elif",
                        "        if kv_usage >= 0.85 or queue_age_s >= 2:\n            self.calm_s = None\n        elif",
                    )
                ),
                UNBROKEN,
            ),
            Wrong(
                "calm since the last rung up",
                edited(
                    ("now_s - self.calm_s >= 10", "now_s - max(self.raised_s, self.calm_s) >= 10"),
                    (
                        "        if not is_calm:\n            self.calm_s = None\n        elif self.calm_s is None:\n            self.calm_s = now_s\n",
                        "        if self.calm_s is None:\n            self.calm_s = now_s\n",
                    ),
                ),
                DOWN,
            ),
            Wrong(
                "calm goes on under pressure",
                edited(
                    (
                        "        if not is_calm:\n            self.calm_s = None\n        elif",
                        "        if not is_calm and kv_usage < 0.85 and queue_age_s < 2:\n            self.calm_s = None\n        elif is_calm and",
                    )
                ),
                UNBROKEN,
            ),
            Wrong(
                "on whole seconds only",
                edited(
                    (
                        "        is_calm =",
                        "        if now_s != int(now_s):\n            return self.level\n        is_calm =",
                    )
                ),
                SAVES,
            ),
            Wrong(
                "one level for all",
                edited(
                    (
                        'class Ladder:\n    def __init__(self):\n        self.level, self.raised_s, self.calm_s = 0, float("-inf"), None',
                        'class Ladder:\n    level, raised_s, calm_s = 0, float("-inf"), None\n\n    def __init__(self):\n        pass',
                    ),
                    (
                        "self.level, self.raised_s = self.level + 1, now_s",
                        "Ladder.level, Ladder.raised_s = self.level + 1, now_s",
                    ),
                    (
                        "self.level, self.calm_s = self.level - 1, now_s",
                        "Ladder.level, self.calm_s = self.level - 1, now_s",
                    ),
                ),
                APART,
            ),
        ),
        right=(Right("counts looks", COUNTING), Right("remembers the last trouble", LAST_TIMES)),
    ),
}
