"""Numbers and comparisons of part B that stand without a cell above them, and why. (`claims` joins them.)"""

ALLOWED: dict[str, str] = {
    "in 4 bits (symmetric groups of 32)": "says what the cell right below does",
    "12,000 tokens of retrieved text": "says what the cell right below does",
    "a first token within 5 s, 120 ms per token": "the SLO of the section's runs, overload.SLO",
    "drafted in vain or generated twice": "two times, of a retry: no comparison",
    "512 parts of 532, or for one of 21": "20 decodes and a chunk of 512: 532 tokens in 21 chunks",
    "shared by 129 chunks now": "128 decodes and the chunk",
}
