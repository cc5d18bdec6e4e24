"""Numbers of sections 7 to 9 that stand without a cell above them, and why."""

ALLOWED_C = {
    "binary 1001": "9 in binary",
}
