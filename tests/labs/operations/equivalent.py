"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, str]] = {
    "8.4": {
        "def __init__(self, threshold, for_s, keep_firing_s=0.0): -> def __init__(self, threshold, for_s, keep_firing_s=-1.0):": (
            "no time is less than 0 s ago, nor less than -1 s"
        ),
    },
    "8.40": {
        "if len(there) < 2: -> if min(len(there), 64) < 2:": "fewer than two is fewer than two, however many are counted",
    },
}
