"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "7.1": {
        "every tensor of a message has a row for each token": ("[1]),", "[-1])"),
    },
    "7.7": {
        "there are spans of the stages before, and so of none in stage 0": (" spans ",),
        "the stage is free at 0 or later, and the later of the two times is taken": (" -1.0",),
        "the first chunk is there at 0 or later, and the later of the two times is taken": (" = (-",),
    },
    "7.10": {
        "within an expert any order will do": ("False",),
    },
    "7.11": {
        "the prompt's length is the same in every engine's cost, so it decides nothing": (
            "keys) -",
            "loads) -",
            "64) -",
        ),
        "any key will do before the first block, the same for all prompts": (" = (1", " = (-"),
    },
    "7.13": {
        "as many as there are: the largest recent number is at least that, and the answer at most": ("wish > ",),
    },
}
