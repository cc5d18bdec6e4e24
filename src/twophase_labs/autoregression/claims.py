"""Numbers and comparisons of lab 1 that stand without a cell above them, and why."""

ALLOWED = {
    "now reads 40 tokens and then writes 10": "says what the cell right below does",
}
