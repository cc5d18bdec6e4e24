"""Edits of part B's solved answers that change nothing, with the reason. (`equivalent` joins them.)"""

EQUIVALENT: dict[str, dict[str, str]] = {
    "8.7": {
        "for name in list(taken): -> for name in taken:": "the loop goes over the list before it; `taken` is bound anew",
    },
    "8.9": {
        "keys = start * count + count * (count + 1) // 2 -> keys = start * count + count * (count + 1) / 2": (
            "count * (count + 1) is even"
        ),
    },
}
