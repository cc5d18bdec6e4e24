"""Numbers and comparisons of lab 6 that stand without a cell above them, and why."""

ALLOWED: dict[str, str] = {
    "so 4 bits would say which of them a weight is": "16 numbers, of the cell above, are 2^4",
    "bytes over 3.35 TB/s, or operations over 989 TFLOP/s": "the data sheet of the H100 SXM, without sparsity",
    "runs SmolLM2 on 512 tokens of prose": "says what the cells below do",
    "512 tokens cannot decide a few per cent": "the tokens of the cells below",
    "4-bit weights that are turned into 16 bits": "what W4A16 means",
    "sheet lists 1,979 TOPS for them, twice the 989.5 TFLOP/s of bf16": "the H100's data sheet, dense",
    "largest magnitude over 512 tokens": "says what the cell right below does",
    "All 210 linear layers": "7 matrices in each of 30 layers",
    "Perplexity is that of 512 tokens": "says what the cell right below does; NUM_TOKENS",
    "cost nothing that 512 tokens could show": "the tokens that perplexity was measured on",
    "256 weights share two float16": "the source of `_q4_k`, right below",
    "they raised the perplexity by a third": "section 2 prints x 1.34; the cell after 6.8 prints it again",
    "Your search looks at 128 tokens": "says what the cell right below does; NUM_CALIBRATION",
    "It has 120 matrices": "4 matrices in each of 30 layers",
    "per matrix on 128 tokens": "NUM_CALIBRATION, of the cell above",
    "binary 1001": "9 in binary",
}
