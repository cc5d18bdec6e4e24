"""Where keys and values live: block pool, block tables, prefix cache, and the K/V tensors.

The bookkeeping (`manager`, `block_pool`, `block_table`, `prefix_cache`) is pure Python and imports no torch;
`kv_cache` holds the tensors. Import each by name.
"""
