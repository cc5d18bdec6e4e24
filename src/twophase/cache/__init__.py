"""Where keys and values live: block pool, block tables, prefix cache, and the K/V tensors.

Public: `allocator` (the door), `manager`, `block_pool` and `prefix_cache`, bookkeeping without torch; and `kv_cache`,
the tensors.
"""
