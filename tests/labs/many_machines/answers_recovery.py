"""Answers that prove the check of exercise 7.3."""

from twophase_labs.machine.bank import right, wrong

WHOLE, HOLE, COUNTS = "adopts what is whole", "finds the first hole", "counts what came, block by block"
AGAIN, DEFAULT = "asks again, but not without end", "asks once unless told otherwise"
LOST, OVER = "recomputes when the sender is lost", "is over once"

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

# fmt: off
BANKS = {
    "7.3": (
        wrong("the last hole", "range(self.num_blocks", "reversed(range(self.num_blocks)", by=WHOLE),
        wrong("layer 0 stands for all", "range(self.num_layers)", "range(1)", by=HOLE),
        wrong("resends from the start", '"resend", self.first_missing', '"resend", 0', by=HOLE),
        wrong("refuses what comes twice", "count):\n        if self.is_over",
              "count):\n        if self.is_over or self.first_missing is None", by=COUNTS),
        wrong("asks once, whatever it is told", "self.num_resends < self.max_resends", "self.num_resends < 1",
              by=AGAIN),
        wrong("asks twice unless told otherwise", "def __init__(self, num_layers, num_blocks, max_resends=1",
              "def __init__(self, num_layers, num_blocks, max_resends=2", by=DEFAULT),
        wrong("adopts when the sender is lost with everything sent", 'return "recompute"',
              "return 'adopt' if self.first_missing is None else 'recompute'", by=LOST),
        wrong("notes what it says it does not take", "if self.is_over:\n            return False", "pass",
              "return True", "return not self.is_over", by=OVER),
        right("a tensor of flags", WITH_TENSOR),
        right("what is missing", COUNTING),
    ),
}
