"""Structured outputs: a grammar says which tokens may come next.

Public: `guidance`, `schema_rules` (what a JSON schema may ask for).
"""
