"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT = {
    "5.2": {
        "self.num_users = [0] * num_blocks -> self.num_users = [-1] * num_blocks": (
            "a block's first user sets the count to 1, so the first value is never read"
        ),
        "if old is not None: -> if old:": ("a hash is never empty"),
        "self.free.move_to_end(block, last=name is not None) -> self.free.move_to_end(block, last=name)": (
            "a hash is never empty, and None counts as False"
        ),
    },
    "5.4": {
        "for start in range(len(token_ids) - n - 1, -1, -1): -> for start in range(len(token_ids) - n - 1, -1 - 1, -1):": (
            "from -1 on there are fewer than n tokens, which equal no n tokens"
        ),
        "def ngram_draft(token_ids, num_draft, longest=3, shortest=1): -> def ngram_draft(token_ids, num_draft, longest=3, shortest=0):": (
            "with n = 0 the newest tokens would be the whole text, which equals no slice of length 0"
        ),
    },
    "5.5": {
        "keep = min(1, p[i, token] / q[i, token]) -> keep = p[i, token] / q[i, token]": (
            "a number in [0, 1) is below 1 and whatever is above it"
        ),
        "keep = min(1, p[i, token] / q[i, token]) -> keep = min(2, p[i, token] / q[i, token])": (
            "a number in [0, 1) is below 1 and whatever is above it"
        ),
        "return [*tokens, chance.draw(p[len(draft)])] -> return [*tokens, chance.draw(p[len(q)])]": (
            "q has a row for each draft"
        ),
        "if chance.uniform() >= keep: -> if chance.uniform() > keep:": ("they are equal once in 2**53 draws"),
    },
    "5.11": {
        "num_sink_blocks = -(-num_sinks // block_size) -> num_sink_blocks = -(-num_sinks / block_size)": (
            "a whole number is below a quotient exactly if it is below the next whole number"
        ),
        "first_seen = max(0, num_tokens + 1 - window) -> first_seen = num_tokens + 1 - window": (
            "every block is at or after one that is below 0"
        ),
        "first_seen = max(0, num_tokens + 1 - window) -> first_seen = max(-1, num_tokens + 1 - window)": (
            "every block is at or after one that is below 0"
        ),
    },
    "5.12": {
        "scores, held = ([0.0] * len(weights), []) -> scores, held = ([1.0] * len(weights), [])": (
            "all scores begin alike: their order is the same"
        ),
        "scores, held = ([0.0] * len(weights), []) -> scores, held = ([-1.0] * len(weights), [])": (
            "all scores begin alike: their order is the same"
        ),
    },
    "5.14": {
        "return -log_probs[torch.arange(len(targets)), targets] -> return -log_probs[torch.arange(len(log_probs)), targets]": (
            "there is a target for each row"
        ),
    },
    "5.15": {
        "if mean - margin > limit: -> if mean - margin >= limit:": (
            "they differ where rounding makes both sides equal, and a right answer may round in another order"
        ),
        "if len(values) < 2: -> if min(len(values), 64) < 2:": ("the smaller of a number and 64 is below 2 if it is"),
        "if len(values) < 2: -> if len(values) < 1:": (
            "one value has a standard deviation of nan, and no comparison with nan holds: read on"
        ),
        "if len(values) < 2: -> if len(values) < 0:": (
            "mean and deviation of no values are nan, and no comparison with nan holds: read on"
        ),
    },
}
