"""KV tiers: evicted blocks are stored outside the pool, and loaded by a later request with the same prefix.

Public: `options` (of the engine, checked), `host_memory`, `disk`.
"""
