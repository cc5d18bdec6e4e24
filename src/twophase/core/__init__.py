"""Plain frozen data shared by every layer; imports no sibling.

Public: `request` (with its options and outputs), `plan` (the work of one step, and its trace), `errors`, `rules` (of
options).
"""
