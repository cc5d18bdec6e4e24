"""Where keys and values live: block pool, block tables, prefix cache, and the K/V tensors.

Public, the bookkeeping, in pure Python without torch: `manager`, `block_pool`, `block_table`, `prefix_cache`, `tier`.
Public, the tensors: `kv_cache`. Import each by name.
"""
