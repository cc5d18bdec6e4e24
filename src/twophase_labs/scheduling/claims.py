"""Numbers and comparisons of lab 4 that stand without a cell above them, and why."""

ALLOWED = {
    "with at most 32 tokens a step": "says what the cell right below does",
    "six blocks of 16 tokens": "says what the cell right below does",
    "60 % of the peak of 989 TFLOP/s": "the peak is the data sheet's; the cell right below prints the seconds",
    "Its factor 36.9 is over FasterTransformer": "the paper's own number, quoted with what it is compared with",
}
