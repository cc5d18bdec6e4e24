"""Plain frozen data shared by every layer: `request`, `plan`, `errors` and `rules` (of options). Imports no sibling."""
