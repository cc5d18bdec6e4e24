"""Lab 2, prefill: exercises, checks, banks, and what its notebook draws with."""
