"""Which sequences run, and which blocks they have; no tensors.

Public: `scheduler`, `planner`, `policy`, `admission` (blocks left free), `limits` (request validation too), `sequence`.
"""
