"""Which sequences run, and which blocks they have; no tensors.

Public: `scheduler`, `planner`, `policy`, `limits` (request validation, admission), `sequence`.
"""
