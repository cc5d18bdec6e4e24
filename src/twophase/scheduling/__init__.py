"""Which sequences run, and which blocks they have; no tensors.

Public: `scheduler`, `config`, `sequence`, `request_validation`, `policy`, `policies`,
`step` (one being planned), `ledger` (of blocks), `admission` (what it leaves them), `tenants` (what they were
served).
"""
