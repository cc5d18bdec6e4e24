"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, tuple[str, ...]]] = {
    "2.4": {
        "where the sum is 0 so is what is divided": (" 0, 2",),
        "minus infinity less any number is minus infinity": ("inf, 1", ", -1)"),
    },
    "2.5": {
        "a tile has as many keys as values": ("len(v",),
    },
    "2.6": {
        "there is one axis": ("=-1) ",),
        "what is multiplied by it is not stored": ("columns, mask=mask, other=1", "columns, mask=mask, other=-"),
    },
    "2.8": {
        "K and V are not loaded there": ("other=1)", "other=-1)"),
        "differs in caches of more than 2^31 elements only, more than a check has memory for": ("int32",),
    },
    "2.9": {
        "`triton.cdiv` of a 0-d tensor is one as well, and a grid takes it": ("= cu_query_lens.",),
        "each sequence has a row of the table": ("block_tables)",),
    },
}
