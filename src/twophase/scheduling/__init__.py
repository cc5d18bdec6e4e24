"""Which sequences run, and which blocks they have; no tensors.

Public: `scheduler`, `limits`, `sequence`, `policy`, `step` (one being planned), `ledger` (of blocks), `admission` (what it
leaves them).
"""
