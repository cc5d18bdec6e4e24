"""Edits of part B's solved answers that change nothing, with the reason. (`equivalent` joins them.)"""

EQUIVALENT: dict[str, dict[str, str]] = {
    "8.7": {
        "for name in list(taken): -> for name in taken:": "the loop goes over the list before it; `taken` is bound anew",
    },
    "8.8": {
        "elif self.calm_s is None: -> elif not self.calm_s:": "differs at second 0 alone, where the level is 0",
        "elif is_calm and now_s - self.calm_s >= 10 and (self.level > 0): -> elif is_calm and now_s - self.calm_s >= 9 and (self.level > 0):": (
            "with a look a second, one who counts looks and one who counts seconds differ by one; both are accepted"
        ),
        "if now_s - self.raised_s >= 2 and self.level < 4: -> if now_s - self.raised_s > 2 and self.level < 4:": (
            "a rung may come two to five seconds after the one before"
        ),
    },
    "8.9": {
        "keys = start * count + count * (count + 1) // 2 -> keys = start * count + count * (count + 1) / 2": (
            "count * (count + 1) is even"
        ),
    },
}
