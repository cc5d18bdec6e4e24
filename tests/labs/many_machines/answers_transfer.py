"""Answers that prove the check of exercise 7.3."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

WHOLE, HOLE, COUNTS, AGAIN, LOST, DEFAULT, OVER, APART = (
    "adopts what is whole",
    "finds the first hole",
    "counts what came, block by block",
    "asks again, but not without end",
    "recomputes when the sender is lost",
    "asks once unless told otherwise",
    "is over once",
    "keeps transfers apart",
)
RIGHT = """
class Transfer:
    def __init__(self, num_layers, num_blocks, max_resends=1):
        self.num_layers, self.num_blocks, self.max_resends = num_layers, num_blocks, max_resends
        self.here = set()
        self.num_resends, self.is_over = 0, False

    @property
    def first_missing(self):
        for block in range(self.num_blocks):
            if any((layer, block) not in self.here for layer in range(self.num_layers)):
                return block
        return None

    def receive(self, layer, first_block, num_blocks):
        if self.is_over:
            return False
        self.here |= {(layer, block) for block in range(first_block, first_block + num_blocks)}
        return True

    def on_sent(self):
        if self.is_over:
            return None
        if self.first_missing is not None and self.num_resends < self.max_resends:
            self.num_resends += 1
            return "resend", self.first_missing
        self.is_over = True
        return "adopt" if self.first_missing is None else "recompute"

    def on_lost(self):
        if self.is_over:
            return None
        self.is_over = True
        return "recompute"
"""


def edited(*pairs: tuple[str, str]) -> str:
    text = RIGHT
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


WITH_TENSOR = """
class Transfer:
    def __init__(self, num_layers, num_blocks, max_resends=1):
        self.written = torch.zeros(num_layers, num_blocks, dtype=torch.bool)
        self.left, self.over = max_resends, False

    @property
    def first_missing(self):
        holes = (~self.written.all(0)).nonzero().flatten()
        return int(holes[0]) if len(holes) else None

    def receive(self, layer, first_block, num_blocks):
        if not self.over:
            self.written[layer, first_block : first_block + num_blocks] = True
        return not self.over

    def on_sent(self):
        if self.over:
            return None
        hole = self.first_missing
        if hole is not None and self.left > 0:
            self.left -= 1
            return ("resend", hole)
        self.over = True
        return "recompute" if hole is not None else "adopt"

    def on_lost(self):
        was, self.over = self.over, True
        return None if was else "recompute"
"""
COUNTING = """
class Transfer:
    def __init__(self, num_layers, num_blocks, max_resends=1):
        self.missing = {block: set(range(num_layers)) for block in range(num_blocks)}
        self.state, self.resends_left = "waiting", max_resends

    @property
    def first_missing(self):
        return min((block for block, layers in self.missing.items() if layers), default=None)

    def receive(self, layer, first_block, num_blocks):
        if self.state != "waiting":
            return False
        for block in range(first_block, first_block + num_blocks):
            self.missing[block].discard(layer)
        return True

    def on_sent(self):
        if self.state != "waiting":
            return None
        if self.first_missing is None:
            self.state = "adopt"
        elif self.resends_left:
            self.resends_left -= 1
            return "resend", self.first_missing
        else:
            self.state = "recompute"
        return self.state

    def on_lost(self):
        if self.state != "waiting":
            return None
        self.state = "recompute"
        return self.state
"""
BY_LISTS = """
class Transfer:
    def __init__(self, num_layers, num_blocks, max_resends=1):
        self.rows = [[False] * num_blocks for _ in range(num_layers)]
        self.num_blocks, self.max_resends, self.asked, self.end = num_blocks, max_resends, 0, None

    @property
    def first_missing(self):
        for block in range(self.num_blocks):
            if not all(row[block] for row in self.rows):
                return block

    def receive(self, layer, first_block, num_blocks):
        if self.end:
            return False
        for i in range(num_blocks):
            self.rows[layer][first_block + i] = True
        return True

    def on_sent(self):
        if self.end:
            return None
        first = self.first_missing
        if first is None:
            self.end = "adopt"
            return "adopt"
        if self.asked == self.max_resends:
            self.end = "recompute"
            return "recompute"
        self.asked += 1
        return ["resend", first]

    def on_lost(self):
        if self.end:
            return None
        self.end = "recompute"
        return "recompute"
"""

BANKS = {
    "7.3": Bank(
        wrong=(
            Wrong("layer 0 stands for all", edited(("range(self.num_layers)", "range(1)")), HOLE),
            Wrong(
                "the highest block that has come",
                edited(
                    (
                        "            if any((layer, block) not in self.here for layer in range(self.num_layers)):\n"
                        "                return block\n        return None",
                        "            pass\n"
                        "        first = min(max([b for l, b in self.here if l == layer], default=-1) + 1\n"
                        "                    for layer in range(self.num_layers))\n"
                        "        return first if first < self.num_blocks else None",
                    )
                ),
                HOLE,
            ),
            Wrong("any layer is enough", edited(("if any((layer", "if all((layer")), HOLE),
            Wrong(
                "the last hole", edited(("in range(self.num_blocks):", "in reversed(range(self.num_blocks)):")), WHOLE
            ),
            Wrong(
                "resends from the start",
                edited(('return "resend", self.first_missing', 'return "resend", 0')),
                HOLE,
            ),
            Wrong(
                "the first block of a message alone",
                edited(("first_block + num_blocks)}", "first_block + 1)}")),
                COUNTS,
            ),
            Wrong("counts messages, not blocks", edited(("first_block + num_blocks)}", "self.num_blocks)}")), HOLE),
            Wrong("asks without end", edited(("and self.num_resends < self.max_resends", "")), AGAIN),
            Wrong("asks once, whatever it is told", edited(("< self.max_resends", "< 1")), AGAIN),
            Wrong("asks twice unless told otherwise", edited(("max_resends=1", "max_resends=2")), DEFAULT),
            Wrong("asks once too often", edited(("< self.max_resends", "<= self.max_resends")), AGAIN),
            Wrong(
                "a resend begins from nothing",
                edited(
                    (
                        'self.num_resends += 1\n            return "resend", self.first_missing',
                        "self.num_resends += 1\n            first = self.first_missing\n            self.here.clear()\n"
                        '            return "resend", first',
                    )
                ),
                HOLE,
            ),
            Wrong(
                "adopts when the sender is lost with everything sent",
                edited(
                    (
                        'self.is_over = True\n        return "recompute"',
                        'self.is_over = True\n        return "adopt" if self.first_missing is None else "recompute"',
                    )
                ),
                LOST,
            ),
            Wrong(
                "notes what it says it does not take",
                edited(
                    (
                        "        if self.is_over:\n            return False\n        self.here |=",
                        "        self.here |=",
                    ),
                    ("        return True\n", "        return not self.is_over\n"),
                ),
                OVER,
            ),
            Wrong(
                "a resend that brings something is not counted",
                edited(
                    (
                        "        self.here |= {",
                        "        num_here = len(self.here)\n        self.here |= {",
                    ),
                    (
                        "        return True\n",
                        "        self.num_resends = 0 if len(self.here) > num_here else self.num_resends\n"
                        "        return True\n",
                    ),
                ),
                AGAIN,
            ),
            Wrong(
                "a resend forgets what lies beyond the hole",
                edited(
                    (
                        "            self.num_resends += 1\n",
                        "            self.num_resends += 1\n            first = self.first_missing\n"
                        "            self.here = {(layer, block) for layer, block in self.here if block < first}\n",
                    )
                ),
                HOLE,
            ),
            Wrong(
                "refuses what comes twice",
                edited(
                    (
                        "        if self.is_over:\n            return False",
                        "        if self.is_over or self.first_missing is None:\n            return False",
                    )
                ),
                COUNTS,
            ),
            Wrong("takes late messages", edited(("            return False", "            return True")), OVER),
            Wrong(
                "a loss ends nothing",
                edited(('        self.is_over = True\n        return "recompute"\n', '        return "recompute"\n')),
                OVER,
            ),
            Wrong(
                "an adopted prompt is lost again",
                edited(
                    (
                        "    def on_lost(self):\n        if self.is_over:\n            return None\n",
                        "    def on_lost(self):\n",
                    )
                ),
                OVER,
            ),
            Wrong(
                "one set for all transfers",
                edited(
                    ("        self.here = set()\n", ""),
                    ("class Transfer:\n", "class Transfer:\n    here = set()\n\n"),
                    ("self.here |= {", "self.here.update({"),
                    ("first_block + num_blocks)}", "first_block + num_blocks)})"),
                ),
                HOLE,
            ),
        ),
        right=(
            Right("a tensor of flags", WITH_TENSOR),
            Right("what is missing", COUNTING),
            Right("lists of flags", BY_LISTS),
        ),
    ),
}
