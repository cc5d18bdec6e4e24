"""Where keys and values live: `allocator` (the door), `manager`, `block_pool`, `prefix_cache`, `kv_cache` (tensors)."""
