"""KV tiers: blocks that leave the pool are kept elsewhere, and found again by a later request for the same prefix.

Public: `host_memory`, `disk`.
"""
