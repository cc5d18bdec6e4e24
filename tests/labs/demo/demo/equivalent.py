"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT = {"1.1": {"the sums have the shape of what they sum": ("arange(1, totals.shape[-1] + 1)",)}}
