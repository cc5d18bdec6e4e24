"""Plain frozen data shared by every layer; imports no sibling. (`batch` alone needs torch: import it by name.)

Public: `request`, `sampling_params`, `structured_outputs`, `speculative` (a request's options and the engine's),
    `plan`, `batch` (the work of one step), `outputs`, `errors`, `rules` (of options).
"""
