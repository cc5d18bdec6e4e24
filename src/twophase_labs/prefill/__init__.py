"""Lab 2: prefill, the compute-bound phase."""
