"""Structured outputs: a grammar says which tokens may come next.

Public: `guidance`, `schema_rules` (JSON schemas that cannot be enforced).
"""
