"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT = {
    "1.1": {
        "picked = rows.gather(-1, tokens[:, None]) -> picked = log_probs.gather(-1, tokens[:, None])": (
            "`gather` takes as many rows as there are tokens, and these come first"
        ),
    },
    "1.3": {
        "logits = model(ids[None]).logits[0] -> logits = model(ids[None]).logits[-1]": (
            "one text: the first row is the last"
        ),
    },
    "1.6": {
        "scores = q @ k.mT / q.shape[-1] ** 0.5 -> scores = q @ k.mT / v.shape[-1] ** 0.5": (
            "queries and values are of one width in this exercise"
        ),
    },
    "1.7": {
        "x = toy.embed(new_ids, old_k.shape[1]) -> x = toy.embed(new_ids, old_v.shape[1])": (
            "there are as many keys as values"
        ),
    },
    "1.8": {
        "unread = ids[:, cache[0].shape[1]:] -> unread = ids[:, cache[1].shape[1]:]": (
            "there are as many keys as values"
        ),
        "unread = ids[:, cache[0].shape[1]:] -> unread = ids[:, cache[-1].shape[1]:]": (
            "there are as many keys as values"
        ),
    },
    "1.13": {
        "return max(0, int(kv_bytes // request_bytes)) -> return max(0, int(kv_bytes / request_bytes))": (
            "below 2**53 a quotient of whole numbers is not rounded across the next one"
        ),
    },
    "1.16": {
        "return slot - length + 1 -> return slot - run + 1": ("the run is as long as wanted there"),
        "return None -> pass": ("a function that ends returns None"),
    },
    "1.19": {
        "table = cache.open([0] * num_prompt) -> table = cache.open([1] * num_prompt)": (
            "nothing looks at which tokens they are"
        ),
        "table = cache.open([0] * num_prompt) -> table = cache.open([-1] * num_prompt)": (
            "nothing looks at which tokens they are"
        ),
        "cache.close(table) -> pass (2)": ("a table that has not grown holds no pages"),
    },
    "1.24": {
        "lowest = ordered.masked_fill(before >= p, 1.0).amin(-1, keepdim=True) -> lowest = ordered.masked_fill(before >= p, 2.0).amin(-1, keepdim=True)": (
            "no probability is above 1; the likeliest stays in any case, so the minimum is never the filling"
        ),
    },
    "1.26": {
        "while reason is None: -> while not reason:": ("no reason is an empty string"),
    },
}
