"""Which sequences run, and which blocks they have; no tensors.

Public: `scheduler`, `config`, `sequence`, `admission` (validation of requests), `policy`, `policies`,
`step` (one being planned), `ledger` (of blocks), `growth` (what admission leaves them), `tenants` (what they were
served).
"""
