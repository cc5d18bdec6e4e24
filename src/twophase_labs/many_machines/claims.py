"""Numbers and comparisons of lab 7 that stand without a cell above them, and why."""

ALLOWED = {
    "serve Llama-3-8B to 96 customers": "says what the cell right below does",
    "a first token within 0.5 s, then at most 30 ms per token": "the SLO of the traffic in the first cell",
    "eight prompts of 24 tokens": "says what the cell right below does",
    "The second prompt took 59 and then 30": "60 + (59 + 30) + (59 + 59) are the 267 messages of the cell above",
    "6,200 tokens of work": "a prompt of the section's beginning, as long as its 6,000 tokens and 200 more",
    "here that is 11 GB/s, about 90 Gbit/s": "32.8 MB a layer over 2.95 ms: the cell above says 2.62 GB and 236 ms",
    "327,680 bytes per token": "2 * 80 layers * 8 heads * 128 * 2 bytes; 2.62 GB / 8,000 tokens in the cell above",
    "has 141 GB of weights": "the model's 70.6 billion weights in 16 bits; the memory is the data sheet's",
    "24 of the prompt and 19 more": "43 rows in the cell above, of a prompt of 24 tokens",
    "36 requests per second, prompts of some 4,800 tokens": "says what the cell right below does",
    "the H200 1.43 times the bandwidth": "4.8 over 3.35 TB/s, of the data sheets",
}
