"""Edits of part B's solved answers that change nothing, with the reason. (`equivalent` joins them.)"""

EQUIVALENT: dict[str, dict[str, str]] = {
    "8.9": {
        "keys = start * count + count * (count + 1) // 2 -> keys = start * count + count * (count + 1) / 2": (
            "count * (count + 1) is even"
        ),
    },
}
