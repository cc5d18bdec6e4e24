"""Which sequences run, and which blocks they have; no tensors.

Public: `scheduler`, `config`, `sequence`, `admission` (validation of requests), `policy`, `policies`, `named_policies`,
`step` (one being planned), `ledger` (of blocks), `growth` (what it leaves them), `fast_forward` (to simulate).
"""
