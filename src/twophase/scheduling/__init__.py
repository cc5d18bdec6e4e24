"""Which sequences run, and which blocks they have; no tensors.

Public: `scheduler`, `config`, `sequence`, `request_validation`, `policy`, `default_policy`, `step` (one being planned),
`ledger` (of blocks), `admission` (what it leaves them).
"""
