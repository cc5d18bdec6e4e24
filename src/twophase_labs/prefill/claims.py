"""Numbers and comparisons of lab 2 that stand without a cell above them, and why."""

ALLOWED = {
    "lets SmolLM2 read the same 128 tokens twice": "says what the cell right below does",
    "The prompt doubles from 2,048 to 4,096 tokens": "a question; the cell right below measures it",
    "How many times as much memory does each take?": "a question; the cell right below measures it",
    "99.5 % of the arithmetic": "one two-hundredth is used: 1 - 1/200",
    "all 61 norms of each step": "two in each of 30 layers, and a last one",
}
