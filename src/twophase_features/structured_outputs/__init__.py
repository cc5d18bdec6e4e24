"""Structured outputs: a grammar says which tokens may come next.

Public: `params` (a request's `StructuredOutputs`), `guidance`, `schema_rules` (JSON schemas that cannot be enforced),
`worker_process` (where a grammar is tried).
"""
