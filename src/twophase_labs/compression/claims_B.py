"""Numbers and comparisons of sections 4 to 6 that stand without a cell above them, and why."""

ALLOWED: dict[str, str] = {}
