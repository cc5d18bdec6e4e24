"""Beam search, a loop above `LLM` over requests that share a prefix.

Public: `params` (parameters and output), `search`.
"""
