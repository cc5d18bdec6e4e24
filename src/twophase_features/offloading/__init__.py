"""KV tiers: evicted blocks are stored outside the pool, and loaded by a later request with the same prefix."""
