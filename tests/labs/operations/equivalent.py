"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

from tests.labs.operations import equivalent_b

EQUIVALENT: dict[str, dict[str, str]] = {**equivalent_b.EQUIVALENT}
