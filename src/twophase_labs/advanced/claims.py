"""Numbers and comparisons of lab 5 that stand without a cell above them, and why."""

ALLOWED = {
    "29.9 GB is often printed": "a quoted number; the cell above prints what it should be",
    "300 clients are served at once": "says what the cell right below does",
    "beyond 32,000 tokens": "a quoted recipe",
    "the K and V of its first 16 tokens": "a question about blocks of 16",
    "come and go in a pool of 40 blocks": "says what the cell right below does",
    "theorem 3.8": "the number of a theorem in the paper that the sentence before it names",
    "nearly four times as many tokens as in float32": "8 bits and a scale per row in place of 32: lab 3 prints them",
    "reads the same 321 tokens with four of them": "says what the cell right below does",
    "255 evenly spaced levels": "-127 to 127",
    "each 95 % confidence interval": "a convention, no measurement",
    "320 predictions neither prove nor refute it": "the text's length, as the cells above read it",
    "reads 2,500 tokens": "the length of the tool's own text",
    "Order 4471: 3 lamps": "a text that the cell right below gives to the model",
}
