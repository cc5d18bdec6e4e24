"""Beam search, a loop above `LLM` over requests that share a prefix."""
