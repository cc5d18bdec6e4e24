"""Numbers and comparisons of lab 5 that stand without a cell above them, and why."""

ALLOWED = {
    "one token in 31 is left to compute": "says what the cell right below measures: 480 + 16 tokens",
    "come 31 times sooner": "the same ratio, asked for before it is measured",
    "the 63 keys that its first query sees": "a window of 64 keys is the query's own and 63 before it",
    "come and go in a pool of 40 blocks": "says what the cell right below does",
    "theorem 3.8": "the number of a theorem in the paper that the sentence before it names",
    "nearly four times as many tokens as in float32": "8 bits and a scale per row in place of 32: lab 3 prints them",
    "reads the same 321 tokens (320 predictions)": "says what the cell right below does",
    "255 evenly spaced levels": "-127 to 127",
    "Student's t would say 2.78": "the quantile for 4 degrees of freedom, from any table",
    "this 95 % confidence interval": "a convention, no measurement",
    "Its text is 2,500 tokens": "the length of the tool's own text",
    "Order 4471: 3 lamps": "a text that the cell right below gives to the model",
}
