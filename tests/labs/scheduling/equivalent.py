"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

ANOTHER_POLICY = "another policy, which reaches the goal as well: the exercise grades what a policy reaches"
THERE_IS_TIME = "with nothing to decode a step of this machine has time for more than a hundred tokens"
NEXT_TO_NOTHING = "a move with no room, or a step that leaves one token of it unused, changes next to nothing"

EQUIVALENT = {
    "4.2": {
        "return [spans[request] for request in range(len(lengths))] -> return [spans[request] for request in range(len(arrivals))]": (
            "each request has an arrival and a length"
        ),
        "first, spans, now = ({}, {}, 0) -> first, spans, now = ({}, {}, -1)": (
            "nothing arrives before step 0, so a step before it does nothing"
        ),
    },
    "4.9": {
        "fits = -(-num_tokens // machine.block_size) <= num_host_free -> fits = -(-num_tokens / machine.block_size) <= num_host_free": (
            "a whole number is as large as a quotient exactly if it is as large as the next whole number"
        ),
    },
    "4.10": {
        "return (priority, arrival_s, number) -> return (priority, number, number)": (
            "`number` counts requests up as they come: it orders as the arrival does"
        ),
        "return (priority, arrival_s, number) -> return (priority, priority, number)": (
            "`number` counts requests up as they come: it orders as the arrival does"
        ),
    },
    "4.11": {
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
    "4.12": {
        "decodes_s = (cost.per_token_s + cost.per_sample_s) * len(decoding) + cost.per_context_s * num_keys -> decodes_s = (cost.per_token_s + cost.per_sample_s) * min(len(decoding), 64) + cost.per_context_s * num_keys": "there are 64 sequence places at most",
        "return now_s + needs_s > sequence.request.arrival_s + self.slo.ttft_s -> return needs_s + needs_s > sequence.request.arrival_s + self.slo.ttft_s": ANOTHER_POLICY,
        "return now_s + needs_s > sequence.request.arrival_s + self.slo.ttft_s -> return now_s - needs_s > sequence.request.arrival_s + self.slo.ttft_s": ANOTHER_POLICY,
        "my_limits = {'max_num_seqs': 64, 'max_num_batched_tokens': 512} -> my_limits = {'max_num_seqs': 63, 'max_num_batched_tokens': 512}": ANOTHER_POLICY,
        "my_limits = {'max_num_seqs': 64, 'max_num_batched_tokens': 512} -> my_limits = {'max_num_seqs': 64, 'max_num_batched_tokens': 511}": ANOTHER_POLICY,
        "my_limits = {'max_num_seqs': 64, 'max_num_batched_tokens': 512} -> my_limits = {'max_num_seqs': 64, 'max_num_batched_tokens': 513}": ANOTHER_POLICY,
        "needs_s = self.cost.per_step_s + self.cost.per_token_s * sequence.num_uncomputed_tokens -> needs_s = self.cost.per_step_s - self.cost.per_token_s * sequence.num_uncomputed_tokens": ANOTHER_POLICY,
        "cost, num_keys = (self.cost, sum((len(sequence.token_ids) for sequence in decoding))) -> cost, num_keys = (self.cost, sum((min(len(sequence.token_ids), 64) for sequence in decoding)))": ANOTHER_POLICY,
        "return fits if decoding else max(fits, 1) -> return fits if decoding else 1": ANOTHER_POLICY,
        "return fits if decoding else max(fits, 1) -> return fits if decoding else max(fits, 0)": THERE_IS_TIME,
        "return fits if decoding else max(fits, 1) -> return fits if decoding else max(fits, 2)": THERE_IS_TIME,
        "return fits if decoding else max(fits, 1) -> return fits if decoding else fits": THERE_IS_TIME,
        "if room < 1: -> if room <= 1:": NEXT_TO_NOTHING,
        "if room < 1: -> if room < 0:": NEXT_TO_NOTHING,
        "return now_s + needs_s > sequence.request.arrival_s + self.slo.ttft_s -> return now_s + needs_s >= sequence.request.arrival_s + self.slo.ttft_s": (
            "the very last moment is one that no clock shows"
        ),
    },
}
