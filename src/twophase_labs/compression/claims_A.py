"""Numbers and comparisons of sections 1 to 3 that stand without a cell above them, and why."""

ALLOWED: dict[str, str] = {
    "so 4 bits would say which of them a weight is": "16 numbers, of the cell above, are 2^4",
    "bytes over 3.35 TB/s, or operations over 989 TFLOP/s": "the data sheet of the H100 SXM, without sparsity",
    "1,979 TFLOP/s for them, 989 in 16 bits": "the data sheet of the H100 SXM, without sparsity",
    "runs the model on 512 tokens of prose": "says what the cells below do",
    "512 tokens cannot decide a few per cent": "the tokens of the cells below",
}
