"""Beam search, a loop above `LLM` over requests that share a prefix.

Public: `params` (what is asked for and returned), `search`.
"""
