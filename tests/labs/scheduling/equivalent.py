"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT = {
    "4.2": {
        "return [spans[request] for request in range(len(lengths))] -> return [spans[request] for request in range(len(arrivals))]": (
            "each request has an arrival and a length"
        ),
    },
    "4.5": {
        "room -= int(step.decode(sequence)) -> room -= step.decode(sequence)": ("True counts as 1"),
    },
    "4.11": {
        "fits = -(-num_tokens // machine.block_size) <= num_host_free -> fits = -(-num_tokens / machine.block_size) <= num_host_free": (
            "a whole number is as large as a quotient exactly if it is as large as the next whole number"
        ),
    },
    "4.12": {
        "return (priority, arrival_s, number) -> return (priority, patience_s, number)": (
            "`number` counts requests up as they come: it orders as the arrival does"
        ),
        "return (priority, arrival_s, number) -> return (priority, number, number)": (
            "`number` counts requests up as they come: it orders as the arrival does"
        ),
        "return (priority, arrival_s, number) -> return (priority, priority, number)": (
            "`number` counts requests up as they come: it orders as the arrival does"
        ),
    },
    "4.13": {
        "error = ((part @ x - 1) ** 2).sum() -> error = ((part @ x - 2) ** 2).sum()": (
            "of a least-squares fit to 1 this is three times the error and a constant: the least is the same"
        ),
        "if (x >= 0).all() and error < least: -> if (x > 0).all() and error < least:": (
            "a fit with a share of 0 is the fit of fewer columns, which came before"
        ),
        "if (x >= 0).all() and error < least: -> if (x >= 0).all() and error <= least:": (
            "no two fits of measurements are equally good, unless they are one"
        ),
        "for columns in [list(c) for size in range(1, 6) for c in itertools.combinations(range(5), size)]: -> for columns in [list(c) for size in range(1, min(6, 64)) for c in itertools.combinations(range(5), size)]:": (
            "6 is below 64"
        ),
    },
    "4.14": {
        "return now_s + needs_s > sequence.request.arrival_s + self.slo.ttft_s -> return now_s + needs_s >= sequence.request.arrival_s + self.slo.ttft_s": (
            "the very last moment is one that no clock shows"
        ),
    },
}
