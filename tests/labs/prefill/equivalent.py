"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "2.2": {
        "one of two neighbours is even": ("1) / ",),
    },
    "2.4": {
        "where the sum is 0 so is what is divided": (" 0, 2",),
        "minus infinity less any number is minus infinity": ("inf, 1", ", -1)"),
    },
    "2.5": {
        "where the sum is 0 so is what is divided": (" 0, 2",),
        "minus infinity less any number is minus infinity": ("inf, 1", ", -1)"),
    },
    "2.6": {
        "a tile has as many keys as values": ("len(v",),
    },
    "2.11": {
        "a chunk has as many keys as queries": ("len(k",),
        "a chunk has as many values as queries": ("len(v",),
    },
    "2.12": {
        "K and V are not loaded there": ("other=1)", "other=-1)"),
        "differs in caches of more than 2^31 elements only, more than a check has memory for": ("int32",),
    },
    "2.13": {
        "there is one axis": ("=-1) ",),
        "what is multiplied by it is not stored": ("columns, mask=mask, other=1", "columns, mask=mask, other=-"),
    },
    "2.14": {
        "`triton.cdiv` of a 0-d tensor is one as well, and a grid takes it": ("= cu_query_lens.",),
        "each sequence has a row of the table": ("block_tables)",),
    },
}
