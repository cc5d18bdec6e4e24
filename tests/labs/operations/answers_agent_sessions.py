"""Answers that prove the check of exercise 8.8."""

from twophase_labs.machine.bank import right, wrong

FINDS, ONCE = "finds the first keys that it holds", "copies a block once"
OLDEST, END = "gives up the block used longest ago", "gives up the end of a prefix first"

BY_CLOCK = """
class TierIndex:
    def __init__(self, num_blocks):
        self.keys, self.used, self.clock = [None] * num_blocks, [-1] * num_blocks, 0

    def _use(self, place):
        self.clock += 1
        self.used[place] = self.clock

    def match(self, keys):
        places = []
        for key in keys:
            if key not in self.keys:
                break
            places.append(self.keys.index(key))
        for place in places[::-1]:
            self._use(place)
        return places

    def store(self, keys):
        places = []
        for key in keys:
            is_here = key in self.keys
            place = self.keys.index(key) if is_here else self.used.index(min(self.used))
            self.keys[place] = key
            self._use(place)
            places.append(None if is_here else place)
        return places
"""

# fmt: off
BANKS = {
    "8.8": (
        wrong("goes on after a hole", "                break", "                continue", by=FINDS),
        wrong("the start of a prefix goes first", "reversed(keys[: len(found)])", "keys[: len(found)]", by=END),
        wrong("a held block is copied again", "places.append(None)", "places.append(self.place_of[key])", by=ONCE),
        wrong("a stored block that is held is no use",
              "                self.place_of[key] = self.place_of.pop(key)\n                places.append(None)",
              "                places.append(None)", by=OLDEST),
        wrong("gives up the newest", "next(iter(self.place_of))", "list(self.place_of)[-1]", by=OLDEST),
        right("the last free place first", "self.free.pop(0)", "self.free.pop()"),
        right("by a clock", BY_CLOCK),
    ),
}
