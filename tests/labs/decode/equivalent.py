"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "3.1": {
        "every layer's keys and values have the same number of tokens": ("[0][1", "[-1][", "[0][-", "[1][0"),
    },
    "3.6": {
        "32 bits count 2^31 elements, 4 GB of float16 in one layer's keys: no pool of a check is that large": (
            "int32",
        ),
        "what is out of range is masked in the loads of keys and values, too": ("other=1)", "other=-1)"),
        "the rows beyond are not stored, and the columns beyond meet zeros of the keys": ("mask_q, other=1",),
        "K, V, scores and maxima of a check are float32": ("p.to(k.", "p.to(scores.", "p.to(new_max."),
    },
    "3.9": {
        "where the sum is 0 so is what is divided": (" 0, 2",),
    },
    "3.10": {
        "its weight is 0, and any number times 0 is 0": (" 1.0)", "-1.0)"),
    },
}
