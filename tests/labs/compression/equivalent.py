"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "6.2": {
        "in a constant group 0 is divided, and by whatever, the code is 0": ("scales, 2",),
    },
    "6.3": {
        "rows of 20 bytes can be seen as float16 where they lie": ("].view",),
    },
    "6.5": {
        "no test of more steps: neighbours of so many differ by less than rounding does": (", 64)",),
        "of two alphas with the same error either will do": ("error <=",),
    },
}
