"""KV tiers: evicted blocks are stored outside the pool, and loaded by a later request with the same prefix.

Public: `tier` (the door), `options` (of the engine, checked), `transfers` (between the pool and a tier), `host_memory`,
    `disk`.
"""
