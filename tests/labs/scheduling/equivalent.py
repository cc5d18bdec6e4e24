"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "4.2": {
        "each request has an arrival and a length": ("arrivals))]",),
        "nothing arrives before step 0, so a step before it does nothing": ("{}, -",),
    },
    "4.9": {
        "a whole number is as large as a quotient exactly if it is as large as the next whole number": (
            "fits = -(-num_tokens / ",
        ),
    },
    "4.10": {
        "`number` counts requests up as they come: it orders as the arrival does": (" number,", " priority,"),
    },
    "4.11": {
        "of a least-squares fit to 1 this is three times the error and a constant: the least is the same": ("x - 2",),
        "a fit with a share of 0 is the fit of fewer columns, which came before": ("(x > ",),
        "no two fits of measurements are equally good, unless they are one": ("error <=",),
        "6 is below 64": ("6, 64",),
    },
    "4.12": {
        "there are 64 sequence places at most": ("64) +",),
        "another policy, which reaches the goal as well: the exercise grades what a policy reaches": (
            "needs_s +",
            "now_s -",
            "': 63",
            ": 511",
            ": 513",
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
