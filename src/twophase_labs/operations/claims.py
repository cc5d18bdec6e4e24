"""Numbers and comparisons of lab 8 that stand without a cell above them, and why."""

ALLOWED: dict[str, str] = {
    "Three tenants send 17 requests": "says what the cell right below does",
    "It sends 32 requests of 4,000 tokens each": "the question's own assumption",
    "one whose answer must be one of 9,900 names": "says what the cell right below does",
    "each of these histograms has 19 buckets already": "18 bounds in metric_families.SECONDS, and +Inf",
    "One pool is at 0.95, with an empty queue": "the question's own assumption",
    "eight of the 36 blocks": "one_llm.NUM_BLOCKS; the burst says what it asks for",
    "CACM 56(2), 2013": "a volume and its number",
    "in 4 bits (symmetric groups of 32)": "says what the cell right below does",
    "12,000 tokens of retrieved text": "says what the cell right below does",
    "a first token within 5 s, 120 ms per token": "the SLO of the section's runs, overload.SLO",
    "rejected as drafts or generated twice": "two times, of a retry: no comparison",
    "costs 1.14 times as much on the L4": "$0.209 / $0.183, and $0.079 / $0.038 on the H100: the lines above",
    "512 parts of 532, or for one of 21": "20 decodes and a chunk of 512: 532 tokens in 21 chunks",
    "shared by 129 chunks now": "128 decodes and the chunk",
    "95 of 100 such intervals contain the true rate": "what a 95 % interval is",
    "Nine of ten answers right is a rate of 90 %": "9 / 10",
}
