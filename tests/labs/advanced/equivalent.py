"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "5.4": {
        "from -1 on there are fewer than n tokens, which equal no n tokens": (" -1 -",),
    },
    "5.5": {
        "a number in [0, 1) is below 1 and whatever is above it": (" = p[", "min(2"),
        "q has a row for each draft": ("len(q",),
        "they are equal once in 2**53 draws": ("() > ",),
    },
    "5.9": {
        "a whole number is below a quotient exactly if it is below the next whole number": ("num_sinks / ",),
        "every block is at or after one that is below 0": ("= num_tokens", "max(-"),
    },
}
