"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "8.7": {
        "a window has fewer than 64 samples": ("), 64",),
        "one sample of a minute more or less: no diagnosis may hang on it": ("2][part", "2][whole"),
        "a time or a share of exactly 0 is no median here": ("name])",),
        "where the bound lies is the learner's choice; no healthy hour is above 0.85": (" 0.85",),
        "where the bound lies is the learner's choice": ("= max", ">= share", " > 2."),
        "another middle value is as good against one odd sample": (" // 3",),
    },
    "8.9": {
        "differs at second 0 alone, where the level is 0": ("calm_s:",),
        "with a look a second, one who counts looks and one who counts seconds differ by one; both are accepted": (
            " >= 9",
        ),
        "a rung may come two to five seconds after the one before": (" > 2 ",),
    },
    "8.10": {
        "count * (count + 1) is even": ("1) / ",),
    },
}
