"""Where keys and values live. All but `kv_cache`, the tensors, is bookkeeping in pure Python, without torch."""
