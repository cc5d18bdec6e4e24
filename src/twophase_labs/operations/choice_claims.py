"""Numbers and comparisons in the sections on canaries, test-time scaling and frameworks without a cell above them."""

ALLOWED: dict[str, str] = {}
