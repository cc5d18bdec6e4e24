"""Numbers and comparisons of sections 10 to 12 that stand without a cell above them, and why."""

ALLOWED: dict[str, str] = {}
