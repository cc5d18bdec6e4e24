"""Structured outputs: a grammar says which tokens may come next."""
