"""Numbers and comparisons in the sections on canaries, test-time scaling and frameworks without a cell above them."""

ALLOWED = {
    "95 of 100 such intervals hold the true rate": "what a 95 % interval is",
    "Nine of ten answers right is a rate of 90 %": "9 / 10",
}
