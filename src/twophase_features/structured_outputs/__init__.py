"""Structured outputs: a grammar says which tokens may come next.

Public: `params` (a request's `StructuredOutputs`), `guidance`, `schema_rules` (JSON schemas that cannot be enforced),
`tool_calls` (outputs that call functions), `worker_process` (where a grammar is tried).
"""
