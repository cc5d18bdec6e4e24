"""Numbers and comparisons of lab 8 that stand without a cell above them, and why."""

ALLOWED: dict[str, str] = {}
