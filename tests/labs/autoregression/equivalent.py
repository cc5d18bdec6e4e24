"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT = {
    "1.1": {
        "picked = rows.gather(-1, tokens[:, None]) -> picked = log_probs.gather(-1, tokens[:, None])": (
            "`gather` takes as many rows as there are tokens, and these come first"
        ),
    },
    "1.3": {
        "next_id = model(ids[None]).logits[0, -1].argmax() -> next_id = model(ids[None]).logits[-1, -1].argmax()": (
            "the only text of the batch is the first and the last"
        ),
    },
    "1.5": {
        "scores = q @ k.mT / q.shape[-1] ** 0.5 -> scores = q @ k.mT / v.shape[-1] ** 0.5": (
            "queries and values are of one width in this exercise"
        ),
    },
    "1.6": {
        "x = toy.embed(new_ids, old_k.shape[1]) -> x = toy.embed(new_ids, old_v.shape[1])": (
            "there are as many keys as values"
        ),
    },
    "1.10": {
        "return max(0, int(kv_bytes // request_bytes)) -> return max(0, int(kv_bytes / request_bytes))": (
            "below 2**53 a quotient of whole numbers is not rounded across the next one"
        ),
    },
    "1.14": {
        "lowest = ordered.masked_fill(before >= p, 1.0).amin(-1, keepdim=True) -> "
        "lowest = ordered.masked_fill(before >= p, 2.0).amin(-1, keepdim=True)": (
            "the smallest is taken, the likeliest token is always among them, and no probability is above 1"
        ),
    },
    "1.15": {
        "while reason is None: -> while not reason:": ("no reason is an empty string"),
    },
}
