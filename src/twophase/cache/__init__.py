"""Where keys and values live: block pool, block tables, prefix cache, and the K/V tensors.

Public, the bookkeeping, in pure Python without torch: `allocator` (the door), `manager`, `block_pool`,
`prefix_cache`.
Public, the tensors: `kv_cache`. Import each by name.
"""
