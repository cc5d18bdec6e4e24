"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "4.2": {
        "each request has an arrival and a length": ("arrivals))]",),
        "nothing arrives before step 0, so a step before it does nothing": ("{}, -",),
    },
    "4.10": {
        "there are 64 batch slots at most": ("64) +",),
        "another policy, which reaches the goal as well: the exercise grades what a policy reaches": (
            "needs_s +",
            "now_s -",
            "- self.cost",
            "64) for",
            "else 1",
        ),
        "with nothing to decode a step of this machine has time for more than a hundred tokens": (
            "fits, 0",
            "fits, 2",
            "else fits",
        ),
        "a move with no room, or a step that leaves one token of it unused, changes next to nothing": (
            " <= 1",
            " < 0:",
        ),
        "the very last moment is one that no clock shows": ("needs_s >=",),
    },
}
