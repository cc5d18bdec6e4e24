"""Numbers and comparisons of lab 5 that stand without a cell above them, and why."""

ALLOWED = {
    "29.9 GB is often printed": "a quoted number; the cell above prints what it should be",
    "one token in 31 is left to compute": "says what the cell right below measures: 480 + 16 tokens",
    "How close to 31 times": "the same ratio, asked for before it is measured",
    "the 63 keys that its first query sees": "a window of 64 keys is the query's own and 63 before it",
    "come and go in a pool of 40 blocks": "says what the cell right below does",
    "theorem 3.8": "the number of a theorem in the paper that the sentence before it names",
    "nearly four times as many tokens as in float32": "8 bits and a scale per row in place of 32: lab 3 prints them",
    "reads the same 321 tokens, which makes 320 predictions": "says what the cell right below does",
    "255 evenly spaced levels": "-127 to 127",
    "this 95 % confidence interval": "a convention, no measurement",
    "Its text is 2,500 tokens": "the length of the tool's own text",
    "Order 4471: 3 lamps": "a text that the cell right below gives to the model",
}
