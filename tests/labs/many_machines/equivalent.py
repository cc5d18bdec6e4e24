"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "7.8": {
        "within an expert any order will do": ("False",),
    },
    "7.9": {
        "the prompt's length is the same in every engine's cost, so it decides nothing": (
            "keys) -",
            "loads) -",
            "64) -",
        ),
        "any key will do before the first block, the same for all prompts": (" = (1", " = (-"),
    },
}
