"""Plain frozen data shared by every layer; imports no sibling. (`batch` alone needs torch: import it by name.)

Public: `request`, `sampling_params`, `structured_outputs`, `speculative` (what is asked for), `plan`, `batch` (what a
step computes), `outputs`, `errors`, `rules` (of options).
"""
