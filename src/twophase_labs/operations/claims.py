"""Numbers and comparisons of lab 8 that stand without a cell above them, and why."""

ALLOWED: dict[str, str] = {
    "Three tenants send 17 requests": "says what the cell right below does",
    "It sends 32 requests of 4,000 tokens each": "the question's own assumption",
    "one whose answer must be one of 9,900 names": "says what the cell right below does",
    "each histogram here has 19 buckets": "18 bounds in metric_families.SECONDS, and +Inf; the cell above lists some",
    "A pool at 0.95 with an empty queue": "the question's own assumption",
    "eight of the 36 blocks": "one_llm.NUM_BLOCKS; the burst says what it asks for",
    "CACM 56(2), 2013": "a volume and its number",
}
